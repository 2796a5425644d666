package testutil_test

import (
	"strings"
	"testing"

	"github.com/onelane/onelane/testutil"
)

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	if real(t) == nil {
		return
	}
	c := testutil.RedisCluster(t, 3)
	client := c.Client()
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		if err := client.Set(t.Context(), key, "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	from := c.Owner("a")
	to := (from + 1) % 3
	m := c.BeginMove("a", to)
	m.MoveKey("a")
	if _, err := c.Nodes[from].Client().Get(t.Context(), "a").Result(); err == nil || !strings.HasPrefix(err.Error(), "ASK ") {
		t.Errorf("a key that was moved: %v, want ASK", err)
	}
	if v, err := client.Get(t.Context(), "a").Result(); v != "v" || err != nil {
		t.Errorf("during the move the key is %q, %v", v, err)
	}
	m.EndMove()
	if got := c.Owner("a"); got != to {
		t.Errorf("the slot is with %d, want %d", got, to)
	}
	if _, err := c.Nodes[from].Client().Get(t.Context(), "a").Result(); err == nil || !strings.HasPrefix(err.Error(), "MOVED ") {
		t.Errorf("after the move: %v, want MOVED", err)
	}
}

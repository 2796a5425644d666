package testutil_test

import (
	"strings"
	"testing"
	"time"

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

func TestSentinel(t *testing.T) {
	t.Parallel()
	if real(t) == nil {
		return
	}
	s := testutil.Sentinel(t)
	client := s.Client()
	if err := client.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Wait(t.Context(), 1, 0).Result(); n != 1 || err != nil {
		t.Fatalf("WAIT: %d, %v", n, err)
	}
	s.Master.Kill()
	s.Promoted()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if v, err := client.Get(t.Context(), "k").Result(); err == nil {
			if v != "v" {
				t.Errorf("after the fail-over the key is %q", v)
			}
			return
		}
	}
	t.Error("the client never found the new master")
}

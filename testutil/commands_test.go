package testutil_test

import (
	"context"
	"maps"
	"testing"
)

func TestCommandsAreCounted(t *testing.T) {
	t.Parallel()
	n := real(t)
	if n == nil {
		return
	}
	ctx := context.Background()
	client := n.Client()
	if err := client.Set(ctx, "before", "1", 0).Err(); err != nil { // opens the connection
		t.Fatal(err)
	}
	got := n.Commands(t, func() {
		for range 3 {
			client.Set(ctx, "k", "v", 0)
		}
		client.Get(ctx, "k")
		client.Eval(ctx, "return redis.call('DEL', KEYS[1])", []string{"k"})
		client.ClientID(ctx)
		client.ClientGetName(ctx)
	})
	want := map[string]int64{"set": 3, "get": 1, "eval": 1, "del": 1, "client": 2}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := n.Commands(t, func() {}); len(got) > 0 {
		t.Errorf("nothing was done, and counted: %v", got)
	}
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
)

// A machine of a quorum is off: nothing answers and nothing refuses the connection. ls shows what
// the others have, and reports the missing one.
func TestList_AMasterIsSwitchedOff(t *testing.T) {
	t.Parallel()
	_, cs, locker := quorum(t)
	must[*core.Lock](t)(locker.Acquire(t.Context(), "job:1"))
	off := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, i := range []int{0, len(cs) - 1} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			with := append(clients(nil), cs...)
			client := redis.NewClient(&redis.Options{Addr: "off:6379", Dialer: off, ContextTimeoutEnabled: true})
			defer client.Close()
			with[i] = client
			ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
			defer cancel()
			var out bytes.Buffer
			o := options{prefix: "onelane:", limit: 10, held: true, args: []string{"ls", "job:"}}
			if err := o.on(ctx, locker, with, &printer{w: &out}); err == nil {
				t.Error("ls does not say that a master is missing")
			}
			contains(t, out.String(), "job:1", "held")
		})
	}
}

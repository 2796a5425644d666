package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// A holder releases with the context that it worked under: ctx := lock.Context(), and then
// defer lock.Release(ctx). Nobody has ended that context before, so Release has its whole time. The
// backend needs 300 ms today, such as etcd on a busy disk.
func TestRelease_WithTheContextOfTheLock(t *testing.T) {
	for name, contextOf := range map[string]func(*core.Lock) context.Context{
		"its context":          func(k *core.Lock) context.Context { return k.Context() },
		"a child that carries": func(k *core.Lock) context.Context { return core.WithLock(k.Context(), k) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l := locker(t, s)
				k := acquire(t, l, "k")
				s.on("release", func(ctx context.Context) error {
					select {
					case <-time.After(300 * time.Millisecond):
						return nil
					case <-ctx.Done():
						return unavailable("k")
					}
				})
				ok(t, "Release", k.Release(contextOf(k)))
				if got := status(t, l, "k"); got != core.Free {
					t.Errorf("the key is %v", got)
				}
			})
		})
	}
}

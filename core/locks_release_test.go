package core_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// hungShard is a backend on which the releases of some keys hang for a node time-out, as on one
// shard of a Redis Cluster.
type hungShard struct{ core.Sealer }

func (b hungShard) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	if !strings.Contains(g.Key, "hung") {
		return b.Sealer.Release(ctx, g)
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	return core.Waiters{Others: -1}, unavailable(g.Key)
}

// "A shard of a Redis Cluster cannot hold up the others."
func TestLocks_ReleaseDoesNotWaitForEachHungKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l := locker(t, hungShard{b})
		keys := []string{"a"}
		for i := range 20 {
			keys = append(keys, fmt.Sprintf("hung:%02d", i))
		}
		locks, err := l.AcquireAll(t.Context(), keys)
		ok(t, "AcquireAll", err)
		start := time.Now()
		want(t, "Release", locks.Release(t.Context()), core.ErrUnavailable)
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("Release took %v: one node time-out for each key", took)
		}
		if got := status(t, l, "a"); got != core.Free {
			t.Errorf("a is %v", got)
		}
	})
}

// a ends during the wait for b, and b stays taken. Nothing stays held and the backend answered each
// question, so no line says that a release failed.
func TestAcquireAll_ALossIsNoFailedRelease(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l := locker(t, b, core.WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
		acquire(t, locker(t, b), "b")
		_, err := l.AcquireAll(t.Context(), []string{"a", "b"}, core.WithMaxHold(0), core.WithWait(30*time.Second))
		want(t, "AcquireAll", err, core.ErrTaken)
		ok(t, "Close", l.Close()) // writes the lines that wait
		synctest.Wait()
		if strings.Contains(out.String(), "release failed") {
			t.Errorf("logged: %s", out.String())
		}
	})
}

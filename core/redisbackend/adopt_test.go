package redisbackend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// An adoption whose reply is lost leaves the orphan: the key is never free.
func TestOrphan_AdoptionWithoutAnswer(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	far := locker(t, one(newClient(t, &redis.Options{Addr: p.Addr().String()})), core.WithTTL(3*time.Second))
	near := locker(t, one(node.Client()))
	ok(t, "Release", acquire(t, far, "warm", core.WithTTL(time.Minute)).Release(t.Context()))
	k := acquire(t, far, "k", core.WithOrphan(time.Hour), core.WithMaxHold(0))
	var orphan *core.OrphanedError
	eventually(t, "the key is orphaned", func() bool {
		_, err := near.TryAcquire(t.Context(), "k")
		return errors.As(err, &orphan)
	})
	if orphan.Owner != k.Owner() {
		t.Fatalf("the orphan is %q, want %q", orphan.Owner, k.Owner())
	}
	p.late.Store(int64(time.Second)) // the adoption has its effect, and its caller is gone before the answer
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := far.Adopt(ctx, orphan, core.WithWait(0), core.WithOrphan(time.Hour))
	want(t, "Adopt without an answer", err, context.DeadlineExceeded)
	p.late.Store(0)
	eventually(t, "the key is the adopter's orphan", func() bool {
		st, err := near.Inspect(t.Context(), "k")
		if err == nil && st.Status == core.Free {
			t.Fatal("the key is free")
		}
		return err == nil && st.Status == core.Orphaned
	})
}

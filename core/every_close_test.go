package core_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// countingInspects counts the questions about keys.
type countingInspects struct {
	*backendtest.MemoryBackend
	inspects atomic.Int64
}

func (c *countingInspects) Inspect(ctx context.Context, key string) (core.State, error) {
	c.inspects.Add(1)
	return c.MemoryBackend.Inspect(ctx, key)
}

// Close ends a job that waits for its next slot: it returns ErrClosed, and asks the backend no more.
func TestEvery_CloseWhileItWaits(t *testing.T) {
	t.Parallel()
	b := &countingInspects{MemoryBackend: backendtest.Memory()}
	l, err := core.New(b)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran, over := make(chan struct{}, 10), make(chan error, 1)
	go func() {
		over <- core.Every(ctx, l, "report", time.Hour, func(context.Context) error { ran <- struct{}{}; return nil })
	}()
	<-ran
	key := core.Join("every", "report", "last")
	for { // until the slot is recorded
		if st, _ := l.Inspect(ctx, key); st.Status == core.Sealed {
			break
		}
	}
	time.Sleep(50 * time.Millisecond)
	before := b.inspects.Load()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-over:
		want(t, "Every after Close", err, core.ErrClosed)
	case <-time.After(2 * time.Second):
		t.Errorf("Every did not return after Close; it asked the backend %d times in 2 s", b.inspects.Load()-before)
		cancel()
		<-over
	}
}

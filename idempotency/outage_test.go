package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// outage is a backend that does not answer for a while: each call ends with its context or after five seconds.
type outage struct {
	core.Backend
	until time.Time
}

// Open implements core.Opener.
func (b *outage) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b *outage) hang(ctx context.Context, key string) error {
	if !time.Now().Before(b.until) {
		return nil
	}
	select {
	case <-ctx.Done():
		return &core.UnavailableError{Key: key, Nodes: []error{ctx.Err()}}
	case <-time.After(5 * time.Second):
		return &core.UnavailableError{Key: key, Nodes: []error{errors.New("no answer")}}
	}
}

func (b *outage) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	if err := b.hang(ctx, r.Key); err != nil {
		return core.Grant{}, err
	}
	return b.Backend.Acquire(ctx, r)
}

func (b *outage) Release(ctx context.Context, g core.Grant) (int, error) {
	if err := b.hang(ctx, g.Key); err != nil {
		return -1, err
	}
	return b.Backend.Release(ctx, g)
}

func (b *outage) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	if err := b.hang(ctx, g.Key); err != nil {
		return err
	}
	return b.Backend.Seal(ctx, g, value, retention)
}

// during runs fn with Claims on a backend of which one call takes longer than all that a claim waits for.
func during(t *testing.T, opts []idempotency.Option, fn func(t *testing.T, b *outage, c *idempotency.Claims)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &outage{Backend: testutil.Memory()}
		l, err := core.New(b)
		if err != nil {
			t.Fatal(err)
		}
		fn(t, b, idempotency.New(l, opts...))
		_ = l.Close()
	})
}

// unavailable checks that an error blames the backend, and no context: the caller's has not ended.
func unavailable(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, core.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Errorf("%s: %v", what, err)
	}
}

// The time that Complete gives the backend is its own. What became of the record is not known then, and it is tried again.
func TestCompleteInAnOutage_RecordsLate(t *testing.T) {
	t.Parallel()
	during(t, nil, func(t *testing.T, b *outage, c *idempotency.Claims) {
		claim := begin(t, c, "k", fp("a"))
		b.until = time.Now().Add(3 * time.Second)
		start := time.Now()
		unavailable(t, "Complete", claim.Complete(t.Context(), record("done")))
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("Complete took %v", took)
		}
		time.Sleep(10 * time.Second)
		replay(t, c, "k", fp("a"), "done")
	})
}

func TestAbandonInAnOutage_SaysSo(t *testing.T) {
	t.Parallel()
	during(t, nil, func(t *testing.T, b *outage, c *idempotency.Claims) {
		claim := begin(t, c, "k", fp("a"))
		b.until = time.Now().Add(3 * time.Second)
		start := time.Now()
		unavailable(t, "Abandon", claim.Abandon(t.Context()))
		if took := time.Since(start); took != time.Second {
			t.Errorf("Abandon took %v", took)
		}
	})
}

// lateTimer is a context whose own timer is late: the backend notices its deadline first.
type lateTimer struct {
	context.Context
	end time.Time
}

func (c lateTimer) Deadline() (time.Time, bool) { return c.end, true }

// Who asks no more does not run unprotected: it would run for nobody, and maybe beside the one that has the key.
func TestFailOpen_NotForOneWhoseContextEnded(t *testing.T) {
	t.Parallel()
	during(t, []idempotency.Option{idempotency.WithFailOpen(), idempotency.WithWait(time.Minute)}, func(t *testing.T, b *outage, c *idempotency.Claims) {
		b.until = time.Now().Add(time.Hour)
		patient, cancel := context.WithCancel(t.Context())
		defer cancel()
		if out, err := c.Begin(patient, "k", fp("a")); err != nil {
			t.Errorf("Begin of one who waits: %v", err)
		} else {
			unavailable(t, "Unprotected", out.Unprotected)
		}
		for what, end := range map[string]func(context.Context, context.CancelFunc) context.Context{
			"a deadline that passes": func(ctx context.Context, cancel context.CancelFunc) context.Context {
				ctx, cancelToo := context.WithTimeout(ctx, time.Second)
				context.AfterFunc(ctx, cancelToo)
				return ctx
			},
			"a deadline whose timer is late": func(ctx context.Context, _ context.CancelFunc) context.Context {
				return lateTimer{ctx, time.Now().Add(time.Second)}
			},
			"hanging up": func(ctx context.Context, cancel context.CancelFunc) context.Context {
				time.AfterFunc(time.Second, cancel)
				return ctx
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			out, err := c.Begin(end(ctx, cancel), "k", fp("a"))
			cancel()
			if out != (idempotency.Outcome{}) || errors.Is(err, core.ErrUnavailable) ||
				!errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %+v, %v", what, out, err)
			}
		}
	})
}

// Who runs a request whose key is orphaned could repeat what the last holder did.
func TestBegin_OrphanedKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := memoryLocker(t)
		_, err := l.Acquire(t.Context(), "claim:k", core.WithMaxHold(0), core.WithOrphan(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		c := idempotency.New(l, idempotency.WithFailOpen(), idempotency.WithWait(time.Minute))
		out, err := c.Begin(t.Context(), "k", fp("a"))
		if !errors.Is(err, core.ErrOrphaned) || out != (idempotency.Outcome{}) {
			t.Errorf("Begin = %+v, %v; want an error that matches ErrOrphaned", out, err)
		}
		_ = l.Close()
	})
}

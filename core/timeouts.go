package core

import (
	"context"
	"sync"
	"time"
)

// timeouts bounds the calls to a node. Those that begin at about the same time share a timer: one for each, made to be
// stopped, would be a fifth of all that a call allocates.
type timeouts struct {
	looksAtParent bool // who uses them waits for limited's parent too

	mu    sync.Mutex
	done  chan struct{} // of the calls that begin before until
	until time.Time
}

// limit bounds ctx by d. Its Deadline is exact; where the timer is shared, its Done may come a sixteenth of d late.
func (t *timeouts) limit(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	now := time.Now()
	if end, ok := ctx.Deadline(); ok && end.Sub(now) <= d {
		return ctx, func() {}
	}
	if ctx.Done() != nil && !t.looksAtParent {
		return context.WithTimeout(ctx, d)
	}
	return &limited{ctx, now.Add(d), t.shared(now, d)}, func() {}
}

func (t *timeouts) shared(now time.Time, d time.Duration) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !now.Before(t.until) {
		done, late := make(chan struct{}), d/16
		t.done, t.until = done, now.Add(late)
		time.AfterFunc(d+late, func() { close(done) })
	}
	return t.done
}

// limited is a context with a deadline. Its Done does not tell that its parent is cancelled.
type limited struct {
	context.Context
	end  time.Time
	done <-chan struct{}
}

func (c *limited) Deadline() (time.Time, bool) { return c.end, true }

func (c *limited) Done() <-chan struct{} { return c.done }

func (c *limited) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return c.Context.Err()
	}
}

package gormlock

import (
	"context"
	"sync"
)

// carried are the contexts that live as long as a transaction. A lost lock ends them at once,
// whatever the transaction waits for, so they have their own mutex.
type carried struct {
	mu    sync.Mutex
	all   map[context.Context]context.CancelCauseFunc
	ended bool
	cause error
}

// with returns a context that ends with ctx, with the transaction, or when end is called.
func (c *carried) with(ctx context.Context) (_ context.Context, end context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	if c.ended {
		cancel(c.cause)
		return ctx, cancel
	}
	if c.all == nil {
		c.all = make(map[context.Context]context.CancelCauseFunc)
	}
	c.all[ctx] = cancel
	return ctx, func(cause error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.all, ctx)
		cancel(cause)
	}
}

// end ends all contexts with cause, also those to come.
func (c *carried) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended, c.cause = true, cause
	for _, cancel := range c.all {
		cancel(cause)
	}
	c.all = nil
}

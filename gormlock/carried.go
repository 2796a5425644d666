package gormlock

import (
	"context"
	"slices"
	"sync"
)

// carried are the contexts that live as long as a transaction. A lost lock ends them at once,
// whatever the transaction waits for, so they have a mutex of their own.
type carried struct {
	mu    sync.Mutex
	all   []*carriedContext
	ended bool
	cause error
}

type carriedContext struct{ cancel context.CancelCauseFunc }

// with returns a context that ends with ctx, with the transaction, or when end is called.
func (c *carried) with(ctx context.Context) (_ context.Context, end context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	if c.ended {
		cancel(c.cause)
	}
	own := &carriedContext{cancel}
	c.all = append(c.all, own)
	return ctx, func(cause error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if i := slices.Index(c.all, own); i >= 0 {
			c.all = slices.Delete(c.all, i, i+1)
		}
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
	for _, own := range c.all {
		own.cancel(cause)
	}
	c.all = nil
}

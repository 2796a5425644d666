package grpclock

import (
	"context"
	"errors"
	"log/slog"

	"github.com/onelane/onelane/core"
)

// locked runs a call under a lock.
func (c *call) locked(key string) (any, error) {
	k, err := c.acquire(key)
	switch {
	case err == nil:
	case c.runUnprotected(err):
		return c.handler(c.ctx, c.req)
	default:
		return nil, c.refuseErr(err)
	}
	released := false
	release := func() error {
		if released {
			return nil
		}
		released = true
		return c.release(k)
	}
	defer func() { _ = release() }() // it panics
	resp, err := c.handler(withLock(k), c.req)
	if lost := errors.Is(release(), core.ErrLost); lost && (err == nil || cancelled(err)) {
		return nil, c.refuse(refuseLost)
	}
	return resp, err
}

// acquire takes the lock of a key.
func (c *call) acquire(key string) (*core.Lock, error) {
	if c.source.lock != nil {
		key = c.source.lock(c, key)
	}
	if c.principal != nil && !c.source.principal {
		key += ":" + core.Join(c.caller().name)
	}
	if c.wait == 0 {
		return c.locker.TryAcquire(c.ctx, key)
	}
	opts := []core.AcquireOption{core.WithWait(c.wait)}
	if c.failOpen {
		opts = append(opts, core.WithOutageWait(0)) // the call runs unprotected instead
	}
	return c.locker.Acquire(c.ctx, key, opts...)
}

// withLock is the context of a handler that runs under k.
func withLock(k *core.Lock) context.Context {
	return context.WithValue(core.WithLock(k.Context(), k), heldKey{}, k)
}

// release ends a lock; the error matches core.ErrLost if it was lost before.
func (c *call) release(k *core.Lock) error {
	err := k.Release(c.ctx)
	switch {
	case err == nil:
	case errors.Is(err, core.ErrLost):
		c.note(slog.LevelError, "grpclock: the lock was lost while the handler ran; another may have run", err)
	default:
		c.note(slog.LevelWarn, "grpclock: a lock was not released; its key is free when its lease ends", err)
	}
	return err
}

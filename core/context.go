package core

import "context"

type carriedKey struct{}

// carried is a context that carries a lock, and the locks of outer.
type carried struct {
	context.Context
	lock  *Lock // nil: the context carries no lock
	outer *carried
}

// Value implements [context.Context].
func (c *carried) Value(key any) any {
	if key == (carriedKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// WithLock returns a context that carries k. Acquire with that context, on the same key and Locker,
// returns another handle on k at once. So a caller does not wait for its own lock. The last Release
// frees the key. The handle shares the lease of k: Acquire refuses a TTL, a maximal hold, an orphan
// or a tag that differ from those of k.
//
// The context does not exclude goroutines that share it from each other. Give them
// WithLock(ctx, nil), which returns a context that carries no lock.
func WithLock(ctx context.Context, k *Lock) context.Context {
	if k == nil {
		return &carried{Context: ctx}
	}
	outer, _ := ctx.Value(carriedKey{}).(*carried)
	return &carried{ctx, k, outer}
}

// carriedLock returns the lock on a key of l that ctx carries, or nil. It may be released already.
func (l *Locker) carriedLock(ctx context.Context, name string) *Lock {
	c, _ := ctx.Value(carriedKey{}).(*carried)
	for ; c != nil && c.lock != nil; c = c.outer {
		if s := c.lock.hold.lease; s.locker == l && s.grant.Key == name {
			return c.lock
		}
	}
	return nil
}

// Carries reports whether ctx carries a lock of l on key that was not given up yet (see
// [WithLock]). If so, Acquire with ctx does not wait. Carries does not talk to the backend.
func (l *Locker) Carries(ctx context.Context, key string) bool {
	if ctx.Value(carriedKey{}) == nil {
		return false
	}
	name, err := backendKey(l.prefix, key)
	if err != nil {
		return false
	}
	k := l.carriedLock(ctx, name)
	if k == nil {
		return false
	}
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	return !k.hold.givenUp()
}

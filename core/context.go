package core

import "context"

type carriedKey struct{}

// carried is the innermost lock that a context carries, and those around it.
type carried struct {
	lock  *Lock
	outer *carried
}

// WithLock returns a context that carries k: acquiring the same key with it, from the same Locker, gives another
// handle on the same lock at once instead of waiting for itself, and the key is freed by the last Release.
// It does not exclude goroutines that share the context from each other: give those [WithoutLock].
func WithLock(ctx context.Context, k *Lock) context.Context {
	outer, _ := ctx.Value(carriedKey{}).(*carried)
	return context.WithValue(ctx, carriedKey{}, &carried{k, outer})
}

// WithoutLock returns a context that carries no lock, for goroutines that must exclude each other although they were
// started under one.
func WithoutLock(ctx context.Context) context.Context {
	return context.WithValue(ctx, carriedKey{}, (*carried)(nil))
}

// carriedLock finds the lock on a key of l that ctx carries; it may be released already.
func (l *Locker) carriedLock(ctx context.Context, name string) *Lock {
	c, _ := ctx.Value(carriedKey{}).(*carried)
	for ; c != nil; c = c.outer {
		if k := c.lock; k.hold.lease.locker == l && k.hold.lease.grant.Key == name {
			return k
		}
	}
	return nil
}

// Carries says whether ctx carries a lock of l on key (see [WithLock]) that was not given up yet: Acquire with ctx does
// not wait then. It does not talk to the backend.
func (l *Locker) Carries(ctx context.Context, key string) bool {
	if ctx.Value(carriedKey{}) == nil { // most often
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

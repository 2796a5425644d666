package backendtest

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

// Memory returns a backend inside this process, for unit tests. It is a core.Opener and a
// core.Backend: Lockers made of one Memory share its keys. Close keeps the keys. Its clock is the
// time package's, so that testing/synctest drives it. It starts no goroutine.
//
// A lock has no fencing token until its holder asks for one, as on Redis. To simulate a fault,
// embed Memory and replace a method:
//
//	type down struct{ *backendtest.MemoryBackend }
//
//	func (down) Acquire(context.Context, core.Request) (core.Grant, error) {
//		return core.Grant{}, &core.UnavailableError{}
//	}
func Memory() *MemoryBackend { return &MemoryBackend{keys: make(map[string]*memoryKey)} }

// MemoryBackend is what [Memory] returns.
type MemoryBackend struct {
	mu    sync.Mutex
	keys  map[string]*memoryKey // all that are not free or that somebody watches
	fence uint64                // at least the largest token of every forgotten key
}

// ofMemory marks a grant of Memory, also one that a backend around it passes on.
type ofMemory struct{}

// Open implements core.Opener.
func (m *MemoryBackend) Open(core.Environment) (core.Backend, error) { return m, nil }

// Ping implements core.Backend. It fails only if ctx is done.
func (m *MemoryBackend) Ping(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return &core.UnavailableError{Nodes: []error{err}}
	}
	return nil
}

// Close implements core.Backend. It does nothing.
func (m *MemoryBackend) Close() error { return nil }

// enter begins a verb. It returns the key as it is now and a function that ends the verb.
func (m *MemoryBackend) enter(ctx context.Context, key string) (*memoryKey, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, &core.UnavailableError{Key: key, Nodes: []error{err}}
	}
	m.mu.Lock()
	k := m.keys[key]
	if k == nil {
		k = &memoryKey{fence: m.fence, waiters: make(map[string]time.Duration)}
		m.keys[key] = k
	}
	k.expire(time.Now())
	return k, func() { m.leave(key, k) }, nil
}

// leave ends a verb. It forgets a key that is free and that nobody watches.
func (m *MemoryBackend) leave(key string, k *memoryKey) {
	if k.status == core.Free && len(k.watchers) == 0 && m.keys[key] == k {
		m.fence = max(m.fence, k.fence)
		delete(m.keys, key)
	}
	m.mu.Unlock()
}

// Acquire implements core.Backend.
func (m *MemoryBackend) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	k, leave, err := m.enter(ctx, r.Key)
	if err != nil {
		return core.Grant{}, err
	}
	defer leave()
	now := time.Now()
	switch {
	case k.status == core.Sealed:
		return core.Grant{}, &core.SealedError{Key: r.Key, Value: k.value, Token: k.token}
	case k.status == core.Held && k.owner != r.Owner:
		if r.Needs > 0 {
			k.waiters[r.Waiter] = r.Needs
		}
		holder, tag := ownertext.Split(k.owner)
		return core.Grant{}, &core.TakenError{Key: r.Key, Holder: holder, Tag: tag, RetryAfter: k.until.Sub(now)}
	case k.status == core.Orphaned && k.owner != r.Adopt:
		return core.Grant{}, &core.OrphanedError{Key: r.Key, Owner: k.owner, Since: k.since}
	case k.status != core.Held:
		k.free()
		k.status, k.owner, k.orphan = core.Held, r.Owner, r.Orphan
	}
	k.until, k.waiter = now.Add(r.TTL), r.Waiter
	if r.Token {
		k.mint()
	}
	return k.grant(core.Grant{Key: r.Key, Owner: r.Owner, Orphan: r.Orphan, Backend: ofMemory{}}), nil
}

// Mint implements core.Backend.
func (m *MemoryBackend) Mint(ctx context.Context, g core.Grant) (core.Grant, error) {
	if g.Token != 0 {
		return g, nil
	}
	k, leave, err := m.enter(ctx, g.Key)
	if err != nil {
		return g, err
	}
	defer leave()
	if err := k.owned(g, core.Held); err != nil {
		return g, err
	}
	k.mint()
	return k.grant(g), nil
}

// Extend implements core.Backend.
func (m *MemoryBackend) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	k, leave, err := m.enter(ctx, g.Key)
	if err != nil {
		return g, err
	}
	defer leave()
	if err := k.owned(g, core.Held); err != nil {
		return g, err
	}
	if until := time.Now().Add(ttl); until.After(k.until) {
		k.until = until
	}
	g.Deadline = k.until
	return g, nil
}

// Release implements core.Backend. It also works if ctx is done: nothing would clean up later.
func (m *MemoryBackend) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	k, leave, err := m.enter(context.WithoutCancel(ctx), g.Key)
	if err != nil {
		return core.Waiters{Others: -1}, err
	}
	defer leave()
	if err := k.owned(g, core.Held, core.Orphaned, core.Sealed); err != nil {
		return core.Waiters{}, err
	}
	var w core.Waiters
	if k.status != core.Sealed {
		w = k.takeWaiters()
		k.free()
		k.signal()
	}
	return w, nil
}

// Seal implements core.Backend.
func (m *MemoryBackend) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	k, leave, err := m.enter(ctx, g.Key)
	if err != nil {
		return err
	}
	defer leave()
	if k.status == core.Sealed && k.owner == g.Owner && bytes.Equal(k.value, value) {
		return nil
	}
	if err := k.owned(g, core.Held, core.Orphaned); err != nil {
		return err
	}
	k.status, k.value, k.token, k.until = core.Sealed, bytes.Clone(value), g.Token, time.Now().Add(retention)
	k.signal()
	return nil
}

// Orphan implements core.Sealer.
func (m *MemoryBackend) Orphan(ctx context.Context, g core.Grant) error {
	k, leave, err := m.enter(ctx, g.Key)
	if err != nil {
		return err
	}
	defer leave()
	if err := k.owned(g, core.Held, core.Orphaned); err != nil {
		return err
	}
	if k.status == core.Held {
		k.until = time.Now()
		k.expire(k.until)
		k.signal()
	}
	return nil
}

// Unseal implements core.Backend.
func (m *MemoryBackend) Unseal(ctx context.Context, key string) error {
	k, leave, err := m.enter(ctx, key)
	if err != nil {
		return err
	}
	defer leave()
	if k.status == core.Sealed || k.status == core.Orphaned {
		k.free()
		k.signal()
	}
	return nil
}

// Inspect implements core.Backend.
func (m *MemoryBackend) Inspect(ctx context.Context, key string) (core.State, error) {
	k, leave, err := m.enter(ctx, key)
	if err != nil {
		return core.State{}, err
	}
	defer leave()
	st := core.State{Status: k.status, Owner: k.owner, Token: k.token, Value: k.value, Since: k.since}
	if k.status != core.Free {
		st.ExpiresIn = time.Until(k.until)
	}
	if k.status == core.Sealed {
		st.Owner = ""
	}
	return st, nil
}

// Watch implements core.Backend.
func (m *MemoryBackend) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	k, leave, err := m.enter(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	w := make(chan struct{}, 1)
	if k.watchers == nil {
		k.watchers = make(map[chan struct{}]bool)
	}
	k.watchers[w] = true
	return w, func() {
		m.mu.Lock()
		defer m.leave(key, k)
		delete(k.watchers, w)
	}, nil
}

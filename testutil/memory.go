package testutil

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
)

// memoryTokens is how many fencing tokens a lease of Memory reserves.
const memoryTokens = 64

// Memory returns a core.Backend inside this process, for unit tests. Its clock is the time package's, so that
// testing/synctest drives it. It wakes waiters at once, and starts no goroutine.
func Memory() core.Backend { return &memory{keys: make(map[string]*memoryKey)} }

type memory struct {
	mu    sync.Mutex
	keys  map[string]*memoryKey // those that are held, sealed or watched, or were until lately
	fence uint64                // no forgotten key had a token above this one
}

type memoryKey struct {
	owner    string // "" unless held
	sealed   bool
	value    []byte
	token    uint64 // of the lease or the seal
	fence    uint64 // the last token given away
	until    time.Time
	watchers map[chan struct{}]bool
}

// at returns the key as it is now. m.mu is held.
func (m *memory) at(key string) *memoryKey {
	k := m.keys[key]
	if k == nil {
		k = &memoryKey{fence: m.fence}
		m.keys[key] = k
	}
	if !time.Now().Before(k.until) {
		k.owner, k.sealed, k.value = "", false, nil
	}
	return k
}

func (k *memoryKey) changed() {
	for w := range k.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// enter is the start of every verb.
func (m *memory) enter(ctx context.Context, key string) (*memoryKey, func(), error) {
	if ctx.Err() != nil {
		return nil, nil, &core.UnavailableError{Key: key, Nodes: []error{context.Cause(ctx)}}
	}
	m.mu.Lock()
	k := m.at(key)
	return k, func() { m.leave(key, k) }, nil
}

// leave is the end of every verb. It forgets a key that is free and that nobody watches.
func (m *memory) leave(key string, k *memoryKey) {
	if k.owner == "" && !k.sealed && len(k.watchers) == 0 {
		m.fence = max(m.fence, k.fence)
		delete(m.keys, key)
	}
	m.mu.Unlock()
}

func (m *memory) Acquire(ctx context.Context, key, owner string, ttl time.Duration) (core.Grant, error) {
	k, leave, err := m.enter(ctx, key)
	if err != nil {
		return core.Grant{}, err
	}
	defer leave()
	now := time.Now()
	switch {
	case k.sealed:
		return core.Grant{}, &core.SealedError{Key: key, Value: k.value, Token: k.token, ExpiresIn: k.until.Sub(now)}
	case k.owner != "" && k.owner != owner:
		holder, tag, _ := strings.Cut(k.owner, "#")
		return core.Grant{}, &core.TakenError{Key: key, Holder: holder, Tag: tag, RetryAfter: k.until.Sub(now)}
	case k.owner == "":
		k.owner, k.token = owner, k.fence+1
		k.fence += memoryTokens
	}
	k.until = now.Add(ttl)
	return core.Grant{Key: key, Owner: owner, Token: k.token, Tokens: memoryTokens, Deadline: k.until}, nil
}

// holds says how the lease is gone, if it is.
func (k *memoryKey) holds(g core.Grant) error {
	switch {
	case k.sealed:
		return fmt.Errorf("%w: the key is sealed", core.ErrLost)
	case k.owner == "":
		return fmt.Errorf("%w: the key expired", core.ErrLost)
	case k.owner != g.Owner:
		return fmt.Errorf("%w: the key is held by %s", core.ErrLost, k.owner)
	}
	return nil
}

func (m *memory) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	k, leave, err := m.enter(ctx, g.Key)
	if err != nil {
		return g, err
	}
	defer leave()
	if err := k.holds(g); err != nil {
		return g, err
	}
	if until := time.Now().Add(ttl); until.After(k.until) {
		k.until = until
	}
	g.Deadline = k.until
	return g, nil
}

func (m *memory) Release(ctx context.Context, g core.Grant) error {
	k, leave, err := m.enter(ctx, g.Key)
	if err != nil {
		return err
	}
	defer leave()
	if k.sealed && k.token >= g.Token && k.token < g.Token+g.Tokens {
		return nil
	}
	if err := k.holds(g); err != nil {
		return err
	}
	k.owner = ""
	k.changed()
	return nil
}

func (m *memory) Seal(ctx context.Context, g core.Grant, token uint64, value []byte, retention time.Duration) error {
	k, leave, err := m.enter(ctx, g.Key)
	if err != nil {
		return err
	}
	defer leave()
	if k.sealed && k.token == token && bytes.Equal(k.value, value) {
		return nil
	}
	if err := k.holds(g); err != nil {
		return err
	}
	k.owner, k.sealed, k.token = "", true, token
	k.value, k.until = bytes.Clone(value), time.Now().Add(retention)
	k.changed()
	return nil
}

func (m *memory) Unseal(ctx context.Context, key string) error {
	k, leave, err := m.enter(ctx, key)
	if err != nil {
		return err
	}
	defer leave()
	if k.sealed {
		k.sealed, k.value = false, nil
		k.changed()
	}
	return nil
}

func (m *memory) Inspect(ctx context.Context, key string) (core.State, error) {
	k, leave, err := m.enter(ctx, key)
	if err != nil {
		return core.State{}, err
	}
	defer leave()
	left := time.Until(k.until)
	switch {
	case k.sealed:
		return core.State{Status: core.Sealed, Token: k.token, Value: k.value, ExpiresIn: left}, nil
	case k.owner != "":
		return core.State{Status: core.Held, Owner: k.owner, Token: k.token, ExpiresIn: left}, nil
	}
	return core.State{}, nil
}

// Watch implements core.Watcher.
func (m *memory) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
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

package core

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// WithSealMemory lets Acquire answer from memory, without a round trip, that a key is sealed, for d after this Locker
// was told so: for keys that many ask for again and again, such as what is sold out. [Locker.Unseal] of this Locker ends
// it at once; an Unseal elsewhere is seen up to d later. Default 0, no memory. At most 1024 keys and 16 MiB of
// values are remembered.
func WithSealMemory(d time.Duration) LockOption {
	return lockOption(func(s *settings) { s.sealMemory = d })
}

const (
	maxRemembered      = 1024
	maxRememberedBytes = 16 << 20
)

// sealMemory is the seals that a Locker met lately, by the backend's name of the key. The zero value is ready.
type sealMemory struct {
	mu      sync.Mutex
	seals   map[string]seenSeal
	bytes   int    // of their values, and of those that another answer or Unseal has replaced
	unseals uint64 // an answer that was asked for before the last one is not remembered
}

type seenSeal struct {
	answer *SealedError
	at     time.Time
}

// Remembered returns the answer that Acquire with the same arguments would give from memory (see [WithSealMemory]), and
// counts as that call then; nil where Acquire would do more. It neither waits nor talks to the backend: it is for callers
// that have something to prepare before they acquire.
func (l *Locker) Remembered(ctx context.Context, key string, opts ...AcquireOption) *SealedError {
	began := time.Now()
	s, err := l.settings.with(opts)
	if err != nil || s.sealMemory == 0 || ctx.Err() != nil {
		return nil
	}
	name, err := backendKey(l.prefix, key)
	if err != nil || l.carriedLock(ctx, name) != nil {
		return nil
	}
	sealed := l.seen.recall(key, name, s.sealMemory)
	if sealed != nil {
		_, span := l.telemetry.start(ctx, "onelane.acquire", key)
		l.telemetry.acquired(ctx, span, began, nil, sealed)
	}
	return sealed
}

// recall returns the answer that a call with so long a memory gets from it, if any.
func (m *sealMemory) recall(key, name string, memory time.Duration) *SealedError {
	if memory == 0 {
		return nil
	}
	m.mu.Lock()
	seen, found := m.seals[name]
	m.mu.Unlock()
	age := time.Since(seen.at)
	if !found || age >= memory || age >= seen.answer.ExpiresIn {
		return nil
	}
	answer := *seen.answer
	answer.Key = key
	answer.ExpiresIn -= age
	return &answer
}

// moment is what remember wants to know of the time before the backend was asked.
func (m *sealMemory) moment() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unseals
}

// remember keeps an answer of the backend that was asked for at a moment.
func (m *sealMemory) remember(w *waiter, answer *SealedError, asked time.Time, moment uint64) {
	if w.sealMemory == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case moment != m.unseals:
		return
	case m.seals == nil, len(m.seals) >= maxRemembered, m.bytes+len(answer.Value) > maxRememberedBytes:
		m.seals, m.bytes = make(map[string]seenSeal), 0 // the others are asked for once more
	}
	m.bytes += len(answer.Value)
	m.seals[w.name] = seenSeal{answer, asked}
}

func (m *sealMemory) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seals, name)
	m.unseals++
}

func (s *settings) validMemory() error {
	if s.sealMemory < 0 {
		return fmt.Errorf("core: seal memory %v: it must not be negative", s.sealMemory)
	}
	return nil
}

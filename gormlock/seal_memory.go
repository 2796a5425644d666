package gormlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
)

const (
	maxRememberedSeals = 1024
	maxRememberedBytes = 16 << 20 // of their values
)

// RememberSeals makes guards remember for d that a key is sealed. They answer from memory then,
// without a round trip and before they prepare a transaction. It is for keys that many callers ask
// for again and again, such as what is sold out; see [SealWhenOut]. An Unseal, and the end of a
// seal, is noticed up to d later. After a guard with [Reopen], the guards of the same [New] ask at
// once. The default is 0: every guard asks. At most 1024 keys and 16 MiB of values are remembered.
func RememberSeals(d time.Duration) Option {
	return pluginOption(func(p *plugin) { p.seals.memory = d })
}

// sealMemory holds the seals that guards met in the last while.
type sealMemory struct {
	memory time.Duration // 0: remember nothing

	mu    sync.Mutex
	seals map[sealedKey]rememberedSeal
	bytes int // of the values in seals, and of those that were replaced or forgotten

	forgot time.Time // when a key was forgotten last
}

type sealedKey struct {
	locker *core.Locker
	key    string
}

type rememberedSeal struct {
	sealed *core.SealedError
	asked  time.Time
}

func (m *sealMemory) valid() error {
	if m.memory < 0 {
		return fmt.Errorf("gormlock: RememberSeals(%v): the time must not be negative", m.memory)
	}
	return nil
}

// remember keeps the seal that an attempt of l met, if err is one. The attempt began at the time
// asked. If a key was forgotten since then, the seal may be gone already.
func (m *sealMemory) remember(l *core.Locker, err error, asked time.Time) {
	if m.memory == 0 {
		return
	}
	sealed, ok := errors.AsType[*core.SealedError](err)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !asked.After(m.forgot) {
		return
	}
	if m.seals == nil || len(m.seals) >= maxRememberedSeals || m.bytes+len(sealed.Value) > maxRememberedBytes {
		m.seals, m.bytes = make(map[sealedKey]rememberedSeal), 0 // guards ask for the others once more
	}
	m.bytes += len(sealed.Value)
	m.seals[sealedKey{l, sealed.Key}] = rememberedSeal{sealed, asked}
}

// forget makes the next guard ask for key.
func (m *sealMemory) forget(l *core.Locker, key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgot = time.Now()
	delete(m.seals, sealedKey{l, key})
}

// remembered returns an error if one of keys is known to be sealed.
func (p *plugin) remembered(ctx context.Context, keys []string) error {
	l, err := p.lockerInUse()
	m := &p.seals
	if err != nil || m.memory == 0 || ctx.Err() != nil {
		return nil // the caller that acquires the lock gets the error
	}
	for _, key := range keys {
		m.mu.Lock()
		seen, found := m.seals[sealedKey{l, key}]
		m.mu.Unlock()
		if found && time.Since(seen.asked) < m.memory && !l.Carries(ctx, key) {
			p.instruments().seals.Add(ctx, 1)
			return guardError(keys, insufficient(seen.sealed))
		}
	}
	return nil
}

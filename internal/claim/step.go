package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/onelane/onelane/core"
)

// Namespace returns the prefix of the claim's Locker.
func (k *Claim) Namespace() string { return k.claims.locker.Prefix() }

// Step runs fn at most once for this claim's key and the name. It returns nil if fn ran now, or the
// result of an earlier run. If fn fails, nothingDone says whether it may run again.
//
// The step is a lock of its own with an orphan, which is sealed with the result. Its key outlives the
// claim: a later run of the same request finds it.
func (k *Claim) Step(ctx context.Context, name string, fn func(context.Context) ([]byte, error), nothingDone func(error) bool) ([]byte, error) {
	if name == "" {
		return nil, errors.New("idempotency: Step: pass the name of the step")
	}
	key := lockKey(core.Join("step", k.key, name))
	k.mu.Lock()
	retention := k.retention
	k.mu.Unlock()
	lock, err := k.claims.locker.Acquire(ctx, key, core.WithOrphan(retention))
	var sealed *core.SealedError
	switch {
	case errors.As(err, &sealed):
		return k.claims.openStep(key, sealed.Value)
	case errors.Is(err, core.ErrOrphaned):
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	case err != nil:
		return nil, fmt.Errorf("idempotency: step %q of key %q: %w", name, k.key, err)
	}
	ended := false
	defer func() {
		if !ended {
			lock.Lapse() // fn failed or panicked
		}
	}()
	result, err := fn(core.WithLock(lock.Context(), lock))
	if err != nil {
		if nothingDone(err) {
			ended = true
			err = errors.Join(err, lock.Release(context.WithoutCancel(ctx)))
		}
		return nil, err
	}
	value := k.claims.sealStep(key, result)
	sealing, cancel := context.WithTimeout(context.WithoutCancel(ctx), completeTimeout)
	defer cancel()
	if err := lock.Seal(sealing, value, retention); err != nil {
		return nil, fmt.Errorf("idempotency: the result of step %q of key %q is not recorded: %w", name, k.key, err)
	}
	ended = true
	return nil, nil
}

// sealStep returns the value that is stored for a result: its key's ID, or nothing, and the result.
func (c *Claims) sealStep(key string, result []byte) []byte {
	if len(c.Keys) == 0 {
		return append([]byte{0}, result...)
	}
	k := c.Keys[0]
	head := append([]byte{byte(len(k.ID))}, k.ID...)
	return append(head, k.seal(result, c.boundTo("step", key))...)
}

func (c *Claims) openStep(key string, value []byte) ([]byte, error) {
	if len(value) == 0 || len(value) <= int(value[0]) && value[0] > 0 {
		return nil, fmt.Errorf("%w: the result of a step", ErrRecord)
	}
	if value[0] == 0 {
		if len(c.Keys) > 0 && !c.ReadPlain {
			return nil, fmt.Errorf("%w: the result of a step is not encrypted, and ReadPlain is not set", ErrRecord)
		}
		return value[1:], nil
	}
	id, rest := string(value[1:1+value[0]]), value[1+value[0]:]
	k, ok := c.key(id)
	if !ok {
		return nil, fmt.Errorf("%w: the result of a step is encrypted with key %q, which this process does not have", ErrRecord, id)
	}
	b, err := k.open(rest, c.boundTo("step", key))
	if err != nil {
		return nil, fmt.Errorf("%w: the result of a step: %w", ErrRecord, err)
	}
	return b, nil
}

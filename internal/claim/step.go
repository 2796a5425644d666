package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

// Namespace returns the prefix of the claim's Locker.
func (k *Claim) Namespace() string { return k.claims.locker.Prefix() }

// Step runs fn at most once for this claim's key and the name. It returns nil if fn ran now, or the
// result of an earlier run. If fn fails, nothingDone reports whether it may run again.
//
// The step has its own lock with an orphan. The result seals that lock. Its key outlives the claim:
// a later run of the same request finds it. A later run with another fingerprint gets
// [ErrMismatch].
func (k *Claim) Step(ctx context.Context, name string, fn func(context.Context) ([]byte, error), nothingDone func(error) bool) ([]byte, error) {
	if name == "" {
		return nil, errors.New("idempotency: Step: pass the name of the step")
	}
	c, key := k.claims, LockKey(k.claims.locker, StepPrefix, k.Effects()+":"+core.Join(name))
	// The result outlives the mark of an unknown outcome, which begins when the claim ends. A mark
	// that was adopted may be of a process with a longer Retention.
	remembered := ownertext.Orphan(k.lock.Owner())
	retention := min(max(k.keptFor(), c.Retention, remembered)+min(c.MaxRun, MaxRetention)+holdGrace, MaxRetention)
	failed := func(err error) error {
		return fmt.Errorf("idempotency: step %q of key %q: %w", name, k.key, err)
	}
	if c.locker.Carries(ctx, key) {
		return nil, failed(errors.New("the step is called inside itself; give the inner one another name"))
	}
	lock, err := c.locker.Acquire(ctx, key, core.WithOrphan(retention), core.WithTag(c.tag(key, k.mark)), c.maxHold())
	var sealed *core.SealedError
	switch {
	case errors.As(err, &sealed):
		result, err := k.stepResult(key, sealed.Value)
		if err != nil {
			return nil, failed(err)
		}
		return result, nil
	case errors.Is(err, core.ErrOrphaned):
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	case err != nil:
		return nil, failed(err)
	}
	run, ended := Run{Begun: time.Now(), Instance: instanceOf(lock.Owner())}, false
	defer func() {
		if !ended { // fn failed or panicked: a later run learns at once that nobody knows what it did
			leave(ctx, lock)
		}
	}()
	result, err := fn(core.WithLock(lock.Context(), lock))
	if err != nil {
		if nothingDone(err) {
			ended = true
			err = errors.Join(err, c.free(context.WithoutCancel(ctx), lock))
		}
		return nil, err
	}
	value, err := c.encode(key, &Record{Body: result}, &k.mark, run)
	if err == nil {
		err = c.seal(context.WithoutCancel(ctx), lock, seal{value: value}, retention)
		ended = errors.Is(err, core.ErrUnavailable) // it is recorded later, or the step is unknown
	}
	if err != nil && !ended {
		return nil, failed(err)
	}
	ended = true
	return nil, nil
}

// stepResult returns the result that an earlier run recorded.
func (k *Claim) stepResult(key string, value []byte) ([]byte, error) {
	r, m, err := k.claims.decode(key, value)
	if err == nil {
		err = m.check(k.fingerprint)
	}
	if err != nil {
		return nil, fmt.Errorf("the result of a step: %w", err)
	}
	return append([]byte{}, r.Body...), nil
}

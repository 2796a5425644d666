package core

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// DoOnce runs fn under the lock on key, as [Locker.Do] does, and seals the key for the retention if
// fn returns nil. Until the retention ends, or until [Locker.Unseal], later calls on the key do
// nothing. ran reports whether this call ran fn. If another call did, that is no error.
//
// DoOnce is for a job at a time of the day. For a job that runs once per interval, use [Every].
//
//   - Put the day into the key, for example core.Join("report", "2026-11-22"), and give such keys
//     to nothing else.
//   - The retention must be longer than the slot plus the largest difference of the instances'
//     clocks.
//   - If fn may take longer than 15 minutes, pass [WithMaxHold]. Otherwise the lock is lost after
//     15 minutes, and a call that waits runs fn, too.
//   - Slots do not exclude each other. If two of them must not overlap, call [Locker.Do] with the
//     name of the job inside fn.
//   - A call that comes while fn runs elsewhere waits for it, and runs fn if that fails. With
//     [WithWait] of 0 it returns [*TakenError]: nobody is left to run fn if the runner dies.
//   - The seal's value is the instance that ran fn ([WithInstance]).
//
// If fn or the backend fails:
//
//   - If fn returns an error or panics, the key is released and another call may run fn. The error
//     is that of Do. If the lock was lost before, a key with [WithOrphan] stays orphaned instead.
//   - If the lock was lost while fn ran, the error matches [ErrLost] and the key is not sealed.
//     Another call may run fn again, or runs it now. With [WithOrphan], the key is still sealed if
//     the orphan is still there, and DoOnce returns no error.
//   - If the key cannot be sealed after fn ran, DoOnce tries again for as long as [WithOutageWait]
//     says. The error says that fn ran and may run again, and matches [ErrUnavailable] or ctx's
//     error. Nobody gets the key before its lease ends. With WithOrphan, the key is orphaned after
//     that.
//   - If the last holder died and had asked for an orphan, DoOnce returns [*OrphanedError].
//   - If ctx carries a lock on key already ([WithLock]), DoOnce returns an error: the seal would
//     end that lock.
//   - On a backend that cannot seal, DoOnce runs nothing and the error matches [ErrNoSeals].
func (l *Locker) DoOnce(ctx context.Context, key string, retention time.Duration, fn func(ctx context.Context) error, opts ...AcquireOption) (ran bool, err error) {
	if err := validRetention(key, retention); err != nil {
		return false, err
	}
	if !l.Seals() {
		return false, fmt.Errorf("core: do once key %q: %w", key, ErrNoSeals)
	}
	s, err := l.settings.with(opts)
	if err != nil {
		return false, err
	}
	if l.Carries(ctx, key) {
		return false, fmt.Errorf("core: do once key %q: the context carries a lock on the key, which the seal would end; call DoOnce outside of it", key)
	}
	k, err := l.Acquire(ctx, key, opts...)
	if errors.Is(err, ErrSealed) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	succeeded := false
	defer func() {
		if !succeeded { // even after a panic
			err = l.releaseAfter(ctx, k, true, err)
		}
	}()
	if err := fn(WithLock(k.Context(), k)); err != nil {
		return true, err
	}
	succeeded = true
	if err := l.sealSurely(ctx, k, retention, s.outage); err != nil {
		k.Lapse() // not Release: the seal may have succeeded, and an orphan must stay one
		return true, fmt.Errorf("core: do once key %q: fn ran, but the seal is not confirmed; fn may run again: %w", key, err)
	}
	return true, nil
}

// sealSurely seals a key over an outage of the backend, even if the lease ends meanwhile. The key
// may be sealed or our orphan by then. If ctx is done it tries once.
func (l *Locker) sealSurely(ctx context.Context, k *Lock, retention, outage time.Duration) error {
	pauses, end := backoff{jitter: l.chance.jitter}, time.Now().Add(outage)
	for {
		sealing, cancel := detach(ctx)
		err := k.seal(ctx, sealing, []byte(l.instance), retention)
		cancel()
		u, ok := err.(*UnavailableError)
		if !ok || u.Permanent || !time.Now().Before(end) {
			return err
		}
		select {
		case <-time.After(pauses.unavailable()):
		case <-ctx.Done():
			return callerError(ctx, k.Key(), err)
		}
	}
}

package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/onelane/onelane/core"
)

// Free frees the key, because nothing was done. It does not end with the request's context. It
// returns after 1 s at most. If the error matches [core.ErrUnavailable], freeing goes on in the
// background. After the claim ended, Free does nothing.
func (k *Claim) Free() error {
	if !k.end() {
		return nil
	}
	ctx, span := k.claims.instruments.start(&k.endless, "idempotency.free")
	o := freed
	defer func() {
		k.claims.instruments.over(ctx, o, k.route, k.began)
		o.end(span)
	}()
	if err := k.claims.free(ctx, k.lock); err != nil {
		if errors.Is(err, core.ErrLost) {
			o = lost
		}
		return fmt.Errorf("idempotency: freeing key %q: %w", k.name, err)
	}
	return nil
}

// free releases a lock, for at most 1 s. After an error it goes on in the background, because the
// lease may have left an orphan.
func (c *Claims) free(ctx context.Context, lock *core.Lock) error {
	releasing, cancel := context.WithTimeout(ctx, freeTimeout)
	defer cancel()
	err := unanswered(lock.Key(), lock.Release(releasing), freeTimeout)
	if err != nil {
		running.background(func(ctx context.Context) { c.freeLater(ctx, lock) })
	}
	return err
}

// freeLater frees a key as soon as the backend is back, unless somebody else has it by then.
func (c *Claims) freeLater(ctx context.Context, lock *core.Lock) {
	err := untilAnswered(ctx, func(ctx context.Context) error { return c.locker.Revoke(ctx, lock.Key(), lock.Owner()) })
	if err != nil && !errors.Is(err, core.ErrLost) {
		c.locker.Logger().Error("idempotency: a key could not be freed in the background, although nothing was done",
			"consequence", c.whenHeld(), "key", lock.Key(), "error", err)
	}
}

// whenHeld says what a retry gets if a key is not freed.
func (c *Claims) whenHeld() string {
	if c.RunAgain {
		return "a retry runs when the lease has ended"
	}
	return "the outcome is unknown to a retry"
}

// LeaveUnknown ends the claim without an answer. With RunAgain a retry runs. Otherwise it learns that
// the outcome is unknown: at once or, if the handler may still run, when the lease has ended.
// LeaveUnknown does not end with the request's context, and returns after 1 s at most.
func (k *Claim) LeaveUnknown() {
	f := Unknown
	if k.claims.RunAgain {
		f = Again
	}
	k.leave(f)
}

// leave leaves the claim's mark instead of an answer: the fate is Unknown or Again.
func (k *Claim) leave(f Fate) {
	if !k.end() {
		return
	}
	o := unknown
	if f == Again {
		o = failed
	}
	if f == Unknown && k.mayGoOn() {
		k.lock.Lapse()
	} else {
		leave(&k.endless, k.lock)
	}
	k.claims.instruments.over(&k.endless, o, k.route, k.began)
}

// leave makes the key of a lock an orphan at once. If the backend does not answer within 1 s, that
// happens when the lease ends, so an error changes nothing.
func leave(ctx context.Context, lock *core.Lock) {
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	_ = lock.Orphan(leaving)
}

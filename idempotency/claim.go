package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
)

const (
	completeTimeout = 2 * time.Second // then the answer is sent, and sealing goes on in the background
	abandonTimeout  = time.Second
	firstSealPause  = 20 * time.Millisecond
	longestPause    = 500 * time.Millisecond
)

// Claim is the right, and the duty, to run a request. End it with [Claim.Complete] or [Claim.Abandon]; Abandon may be
// deferred, since after Complete it leaves the record alone. It is safe for concurrent use.
type Claim struct {
	claims *Claims
	key    string
	name   string // of the lock
	mark   mark
	began  time.Time
	lock   *core.Lock
	outer  *Claim // which the context carried before
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	over bool // Complete or Abandon was called
}

type claimKey struct{}

func newClaim(ctx context.Context, r *request, lock *core.Lock) *Claim {
	k := &Claim{claims: r.Claims, key: r.key, name: r.name, mark: r.mark, began: time.Now(), lock: lock}
	k.outer, _ = FromContext(ctx)
	ctx = context.WithValue(core.WithLock(ctx, lock), claimKey{}, k)
	k.ctx, k.cancel = context.WithCancelCause(ctx)
	// Not simply the lock's context: that ends when a tombstone is sealed, and the work goes on.
	held := lock.Context()
	context.AfterFunc(held, func() {
		if err := context.Cause(held); errors.Is(err, core.ErrLost) || errors.Is(err, core.ErrClosed) {
			k.cancel(err)
		}
	})
	return k
}

// FromContext returns the innermost claim that ctx carries.
func FromContext(ctx context.Context) (*Claim, bool) {
	k, ok := ctx.Value(claimKey{}).(*Claim)
	return k, ok
}

// Carries says whether ctx carries a claim on key, as it was passed to [Claims.Begin], be it the innermost or one
// around it.
func Carries(ctx context.Context, key string) bool {
	k, _ := FromContext(ctx)
	for ; k != nil && k.key != key; k = k.outer {
	}
	return k != nil
}

// carries says whether ctx carries a claim on the lock of this name that is not over.
func carries(ctx context.Context, name string) bool {
	k, _ := FromContext(ctx)
	for ; k != nil; k = k.outer {
		if k.lock.Key() == name && k.lock.Err() == nil {
			return true
		}
	}
	return false
}

// Key returns the key as it was passed to Begin.
func (k *Claim) Key() string { return k.key }

// Token returns the fencing token of the claim: larger than that of every earlier claim on the key
// that has one. The first call costs a round trip; see [core.Lock.Token].
func (k *Claim) Token(ctx context.Context) (uint64, error) { return k.lock.Token(ctx) }

// Context returns a child of the context that was passed to Begin. It carries the claim, and the lock behind it (see
// [core.WithLock]). It is cancelled with a cause that matches [core.ErrLost] when the claim is lost, or
// [core.ErrClosed] when the Locker is closed, and by Abandon.
func (k *Claim) Context() context.Context { return k.ctx }

// Complete seals the key with r, for the retention: from now on every repeat gets it. Only r is copied, not what it
// points to: it must not be modified.
//
// It does not end with ctx, which may be done already, but after 2 s: Redis may be away for a moment. If the outcome is
// not known then, the error matches [core.ErrUnavailable], and sealing is tried again in the background until the
// lease ends; the key is not given to anybody before that. An error that matches [core.ErrLost] says that the claim
// was lost, and somebody else may be running: nothing was recorded. The second call is [ErrCompleted]. A record that
// is too large, over 16 MiB, is refused and leaves the claim as it was.
func (k *Claim) Complete(ctx context.Context, r *Record) error {
	if r == nil {
		return fmt.Errorf("idempotency: key %q: complete a claim with a record, or with Tombstone", k.key)
	}
	value, err := k.claims.encode(k.name, r, k.mark)
	if err != nil {
		return fmt.Errorf("idempotency: key %q: %w", k.key, err)
	}
	if !k.end() {
		return fmt.Errorf("idempotency: key %q: %w", k.key, ErrCompleted)
	}
	ctx, span := k.claims.instruments.start(context.WithoutCancel(ctx), "idempotency.complete")
	o := ran
	if r.NotKept {
		o = tombstone
	}
	defer func() {
		k.claims.instruments.over(ctx, o, k.began)
		o.end(span)
	}()
	sealing, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	if err = k.unanswered(k.seal(sealing, value), completeTimeout); err == nil {
		k.claims.instruments.size.Record(ctx, int64(len(value)), k.claims.instruments.record[o]...)
		return nil
	}
	o = unrecorded
	switch {
	case errors.Is(err, core.ErrLost):
		o = lost
	case errors.Is(err, core.ErrUnavailable):
		go k.sealLater(value)
	}
	return fmt.Errorf("idempotency: the answer to key %q is not recorded: %w", k.key, err)
}

// end says that the claim is over; false if it was before.
func (k *Claim) end() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.over
	k.over = true
	return !was
}

// seal tries to seal until the outcome is known, ctx ends or the lock is lost.
func (k *Claim) seal(ctx context.Context, value []byte) error {
	for pause := firstSealPause; ; pause = min(2*pause, longestPause) {
		err := k.lock.Seal(ctx, value, k.claims.retention)
		if !errors.Is(err, core.ErrUnavailable) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// unanswered is the error of a call that we gave so long: its end is ours, and not that of a context of the caller's.
func (k *Claim) unanswered(err error, gave time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &core.UnavailableError{Key: k.key, Nodes: []error{fmt.Errorf("no answer within %v: %v", gave, err)}}
	}
	return err
}

// sealLater goes on sealing while the lease is held: it is over when Redis answers, or when the lease ends since it
// does not, and Seal says that it is lost.
func (k *Claim) sealLater(value []byte) {
	switch log, err := k.claims.locker.Logger(), k.seal(context.Background(), value); {
	case err == nil:
		log.Info("idempotency: a late answer was recorded", "key", k.key)
	default:
		log.Warn("idempotency: an answer was not recorded; a repeat runs again", "key", k.key, "error", err)
	}
}

// Abandon gives the claim up, so that the next request with the key runs, and cancels its context. It works on a
// context of its own for up to 1 s, even if ctx is done. After Complete, whatever its outcome was, it only cancels the
// context. The error matches [core.ErrLost] when the claim was lost before, and [core.ErrUnavailable] when Redis did
// not answer: then the key is free when its lease ends.
func (k *Claim) Abandon(ctx context.Context) error {
	defer k.cancel(nil)
	if !k.end() {
		return nil
	}
	ctx, span := k.claims.instruments.start(context.WithoutCancel(ctx), "idempotency.abandon")
	o := abandoned
	defer func() {
		k.claims.instruments.over(ctx, o, k.began)
		o.end(span)
	}()
	releasing, cancel := context.WithTimeout(ctx, abandonTimeout)
	defer cancel()
	if err := k.unanswered(k.lock.Release(releasing), abandonTimeout); err != nil {
		if errors.Is(err, core.ErrLost) {
			o = lost
		}
		return fmt.Errorf("idempotency: abandon key %q: %w", k.key, err)
	}
	return nil
}

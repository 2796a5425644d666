package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
)

const (
	completeTimeout = 2 * time.Second // then the answer is sent, and sealing goes on in the background
	freeTimeout     = time.Second
	firstPause      = 20 * time.Millisecond
	longestPause    = 5 * time.Second

	// holdGrace is how long a lock is still renewed after MaxRun, so that a handler that goes on
	// keeps its key.
	holdGrace = 10 * time.Minute
)

// ErrMaxRun is the cause of a claim's context that ran into MaxRun.
var ErrMaxRun = fmt.Errorf("idempotency: the handler ran longer than MaxRun: %w", context.DeadlineExceeded)

// Fate is what becomes of the key when a handler has answered.
type Fate int

// The fates of a key.
const (
	// Keep records the answer, and every retry gets it.
	Keep Fate = iota
	// Free means that nothing was done. A retry runs.
	Free
	// Unknown means that nobody knows what was done. A retry is refused.
	Unknown
	// NotKept means that the answer cannot be recorded. A retry is refused.
	NotKept
	// Unanswered means that the answer is left to others, who answer later. A retry is refused.
	Unanswered
	// Again means that the run failed and may be repeated. A retry with the same payload runs.
	Again
)

// Claim is the right, and the duty, to run a request. End it with [Claim.Complete], [Claim.Free] or
// [Claim.LeaveUnknown]; the first of them counts. It is safe for concurrent use.
type Claim struct {
	// Answer is what the handler writes its answer to. The adapter sets it before the handler runs.
	Answer any

	claims      *Claims
	key         string
	name        string // of the lock
	route       string
	mark        mark
	fingerprint Fingerprint
	ofContent   bool
	began       time.Time
	adopted     *UnknownError
	lock        *core.Lock
	outer       *Claim // the one that the context carried before
	endless     endless
	ctx         context.Context
	cancel      context.CancelCauseFunc
	cancelTimer context.CancelFunc
	unwatch     func() bool // nil if the request's context never ends
	stone       []byte      // see tombstone

	mu        sync.Mutex
	over      bool
	retention time.Duration
	fate      *Fate // what the handler said
	fixed     bool  // and nothing else counts
	recovered bool  // Recover answered
	goesOn    bool  // the handler may still run, although it has answered
}

func newClaim(ctx context.Context, a *attempt, lock *core.Lock) *Claim {
	k := &Claim{
		claims: a.Claims, key: a.Key, name: a.name, route: a.Route, mark: a.mark, fingerprint: a.Fingerprint, ofContent: a.OfContent,
		began: time.Now(), adopted: a.adopted, lock: lock, retention: a.Retention,
	}
	k.outer, _ = FromContext(ctx)
	k.detach(ctx, a.Deadline)
	return k
}

// Key returns the key as it was passed to Begin.
func (k *Claim) Key() string { return k.key }

// Effects returns a text for what the request does. It is made of the key, the method, the path and,
// unless any host will do, the host. A key that was freed may come with another request. The body
// does not count: another system must be able to refuse it.
func (k *Claim) Effects() string {
	if scope := k.fingerprint.scope(); scope != "" {
		return k.key + ":" + scope
	}
	return k.key
}

// Plain reports whether core takes the key as it is. Otherwise the claim's lock has a hash of it.
func (k *Claim) Plain() bool { return k.name == KeyPrefix+k.key }

// Fingerprint returns the fingerprint of the request.
func (k *Claim) Fingerprint() Fingerprint { return k.fingerprint }

// Token returns the fencing token of the claim. The first call costs a round trip; see
// [core.Lock.Token].
func (k *Claim) Token(ctx context.Context) (uint64, error) { return k.lock.Token(ctx) }

// Context returns the context for the handler. It has the values of the context that was passed to
// Begin, and carries the claim and its lock. It does not end when the client hangs up. It ends when
// the claim ends or is lost (the cause matches [core.ErrLost]), when the server's deadline passes,
// and after MaxRun.
func (k *Claim) Context() context.Context { return k.ctx }

// Decide sets what becomes of the key, whatever the answer is.
func (k *Claim) Decide(f Fate) { k.decide(f, false) }

// DecideForGood is the last Decide that counts. A part of the answer is sent, and cannot be taken back.
func (k *Claim) DecideForGood(f Fate) { k.decide(f, true) }

func (k *Claim) decide(f Fate, fixed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.fixed {
		k.fate, k.fixed = &f, fixed
	}
}

// withdraw drops the decision f, if that was made.
func (k *Claim) withdraw(f Fate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fate != nil && *k.fate == f {
		k.fate = nil
	}
}

// Suggest sets what becomes of the key, unless that was decided.
func (k *Claim) Suggest(f Fate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fate == nil {
		k.fate = &f
	}
}

// LeftToOthers reports whether the answer was left to others, or given past the adapter.
func (k *Claim) LeftToOthers() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fate != nil && (*k.fate == Unanswered || *k.fate == NotKept)
}

// KeepFor sets how long this request's record is kept, within the limits of a retention.
func (k *Claim) KeepFor(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.retention = min(max(d, MinRetention), MaxRetention)
}

func (k *Claim) keptFor() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.retention
}

// end marks the claim as over. It returns false if the claim was over already.
func (k *Claim) end() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.over
	k.over = true
	return !was
}

// Close ends the context of the handler. Call it when the handler has returned. If the claim has
// not ended, Close leaves its outcome unknown.
func (k *Claim) Close() {
	k.LeaveUnknown()
	if k.unwatch != nil {
		k.unwatch()
	}
	k.cancel(nil)
	k.cancelTimer()
	running.remove(k)
}

// End ends the claim as the fate of its key says. The record is for the fates Keep, NotKept and
// Unanswered. The answer is sent whatever happens here, so a failure is only logged.
func (k *Claim) End(f Fate, r *Record) {
	switch f {
	case Free:
		if err := k.Free(); err != nil {
			k.claims.locker.Logger().WarnContext(&k.endless, "idempotency: a key could not be freed",
				"consequence", k.claims.whenHeld(), "route", k.route, "error", err)
		}
	case Unknown, Again:
		k.leave(f)
	default:
		k.completeOrLog(r)
	}
}

func (k *Claim) completeOrLog(r *Record) {
	err := k.Complete(r)
	switch {
	case err == nil, errors.Is(err, ErrOver):
	case errors.Is(err, core.ErrLost):
		k.log(slog.LevelError, "idempotency: the claim was lost while the handler ran; its answer is not recorded", err)
	case errors.Is(err, core.ErrUnavailable):
		k.log(slog.LevelError, "idempotency: the answer is not recorded yet; it will be when the backend is back", err)
	default:
		k.log(slog.LevelError, "idempotency: the answer could not be recorded; a retry is refused", err)
		_ = k.Complete(Tombstone()) // the record was too large
	}
}

func (k *Claim) log(level slog.Level, text string, err error) {
	k.claims.locker.Logger().Log(&k.endless, level, text, "route", k.route, "error", err)
}

// Complete seals the key with r for the retention: from now on every retry gets r, which must not
// be modified any more.
//
// Complete does not end with the request's context. It returns after 2 s at most. If the outcome is
// not known by then, the error matches [core.ErrUnavailable], and sealing goes on in the
// background; nobody else gets the claim meanwhile. If the claim was lost and somebody else took it
// over, the error matches [core.ErrLost] and nothing was recorded. A record that is too large is
// refused and leaves the claim as it was. If only the backend refuses it, a tombstone is recorded.
// After the claim ended, the error matches [ErrOver].
func (k *Claim) Complete(r *Record) error {
	value, err := k.encode(r)
	if err != nil {
		return fmt.Errorf("idempotency: key %q: %w", k.name, err)
	}
	if !k.end() {
		return fmt.Errorf("idempotency: key %q: %w", k.name, ErrOver)
	}
	ctx, span := k.claims.instruments.start(&k.endless, "idempotency.complete")
	o := ran
	switch {
	case r.NotKept:
		o = tombstone
	case k.adopted != nil && k.claims.RunAgain:
		o = ranAgain
	case k.adopted != nil:
		o = recovered
	}
	defer func() {
		k.claims.instruments.over(ctx, o, k.route, k.began)
		o.end(span)
	}()
	if err := k.claims.seal(ctx, k.lock, seal{value, k}, k.keptFor()); err != nil {
		switch o = unrecorded; {
		case errors.Is(err, core.ErrLost):
			o = lost
		case errors.Is(err, errTombstone):
			o = tombstone
		}
		return fmt.Errorf("idempotency: the answer to key %q is not recorded: %w", k.name, err)
	}
	k.claims.instruments.size.Record(ctx, int64(len(value)), k.claims.instruments.record[o]...)
	return nil
}

// tombstone returns what is stored instead of a record that the backend refused. It is the same
// each time, because a lock that may have been sealed takes no other value.
func (k *Claim) tombstone() (value []byte, err error) {
	if k.stone == nil {
		k.stone, err = k.encode(Tombstone())
	}
	return k.stone, err
}

// encode returns what is stored for a record of this run.
func (k *Claim) encode(r *Record) ([]byte, error) {
	return k.claims.encode(k.name, r, &k.mark, Run{Begun: k.began, Instance: instanceOf(k.lock.Owner())})
}

// seal is what is left under a key.
type seal struct {
	value []byte
	claim *Claim // gets a tombstone if the backend refuses the value; nil for a step
}

// errTombstone means that the backend refused a value and took a tombstone.
var errTombstone = errors.New("a tombstone is recorded instead")

// seal seals a lock for at most 2 s. If the outcome is not known then, the error matches
// [core.ErrUnavailable], and sealing goes on in the background.
func (c *Claims) seal(ctx context.Context, lock *core.Lock, s seal, retention time.Duration) error {
	sealing, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	err := s.untilAnswered(sealing, lock, retention)
	err = unanswered(lock.Key(), err, completeTimeout)
	switch {
	case errors.Is(err, core.ErrUnavailable):
		running.background(func(ctx context.Context) { c.sealLater(ctx, lock, s, retention) })
	case err != nil && !errors.Is(err, errTombstone):
		leave(ctx, lock)
	}
	return err
}

// untilAnswered seals a lock. It calls the backend until that has answered or ctx ends.
func (s seal) untilAnswered(ctx context.Context, lock *core.Lock, retention time.Duration) error {
	put := func(value []byte) error {
		return untilAnswered(ctx, func(ctx context.Context) error { return lock.Seal(ctx, value, retention) })
	}
	err := put(s.value)
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if err == nil || s.claim == nil || ended || errors.Is(err, core.ErrLost) || errors.Is(err, core.ErrUnavailable) {
		return err
	}
	// It is too large for the backend. Without a tombstone the request would be unknown, or run again.
	stone, failed := s.claim.tombstone()
	if failed == nil {
		failed = put(stone)
	}
	switch {
	case failed == nil:
		return fmt.Errorf("%w; %w", err, errTombstone)
	case errors.Is(failed, core.ErrUnavailable), errors.Is(failed, core.ErrLost):
		return failed
	}
	return err
}

// sealLater seals as soon as the backend is back. A lock without an orphan ends with its lease.
func (c *Claims) sealLater(ctx context.Context, lock *core.Lock, s seal, retention time.Duration) {
	err := s.untilAnswered(ctx, lock, retention)
	consequence := "the outcome is unknown to a retry"
	switch {
	case err == nil:
		c.locker.Logger().Info("idempotency: a late result was recorded", "key", lock.Key())
		return
	case errors.Is(err, errTombstone):
		consequence = "a retry is refused"
	default:
		if lock.Lapse(); c.RunAgain {
			consequence = "a retry runs"
		}
	}
	c.locker.Logger().Error("idempotency: a result was not recorded", "consequence", consequence, "key", lock.Key(), "error", err)
}

// untilAnswered calls fn until the backend has answered or ctx ends.
func untilAnswered(ctx context.Context, fn func(context.Context) error) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := fn(ctx)
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

// unanswered returns the error of a call that ran under our own time-out. If the time-out ended the
// call, the error must not match that of the caller's context.
func unanswered(key string, err error, gave time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &core.UnavailableError{Key: key, Nodes: []error{fmt.Errorf("no answer within %v: %v", gave, err)}}
	}
	return err
}

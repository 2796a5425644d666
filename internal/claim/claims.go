package claim

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

// Claims gives out claims on keys of one [core.Locker]. It is safe for concurrent use.
type Claims struct {
	Settings
	locker      *core.Locker
	instruments *instruments
	options     []core.AcquireOption // of every claim
}

// New returns Claims on l, which report to l's logger, meter and tracer. The transport, "http" or
// "grpc", is an attribute of metrics and spans.
func New(l *core.Locker, transport string, s Settings) *Claims {
	return newClaims(l, newInstruments(l, transport), s)
}

func newClaims(l *core.Locker, i *instruments, s Settings) *Claims {
	c := &Claims{Settings: s, locker: l, instruments: i}
	c.options = []core.AcquireOption{core.WithWait(c.Wait), c.maxHold()}
	if c.FailOpen {
		c.options = append(c.options, core.WithOutageWait(0)) // the request runs unprotected instead
	}
	c.options = append(c.options, core.WithOrphan(c.Retention))
	return c
}

// Request is a request that asks for a claim.
type Request struct {
	// Key is a text of any length that is not empty. Join its parts with [core.Join].
	Key         string
	Fingerprint Fingerprint
	// ID is the request's id in logs and traces, or empty.
	ID string
	// Route is an attribute of metrics. There must be few different routes.
	Route string
	// OfContent means that Key is made of what was sent. A later request may have the same key and be
	// another one.
	OfContent bool
	// Deadline is the server's own deadline, or zero. The client's deadline does not count: see
	// [Claim.Context].
	Deadline time.Time
	// HalfCloses means that the client may wait for its answer although the context is canceled. See
	// [Linger].
	HalfCloses bool
}

// Outcome says what to do with a request. Exactly one of its fields is set.
type Outcome struct {
	// Claim is set if the handler is to run.
	Claim *Claim
	// Replay is set if it ran already. It must not be modified.
	Replay *Record
	// Unprotected is set, only with FailOpen, if the backend is not available. It is the error that
	// Begin would have returned.
	Unprotected error
}

// Begin asks for the claim on a key. It talks to the backend once, unless it waits for a running
// request or takes over an unknown outcome.
//
// The error is [*UnknownError], or it matches [ErrInFlight], [ErrMismatch] or [ErrRecord].
// Otherwise it is an error of core, which matches [core.ErrUnavailable], [core.ErrClosed],
// [core.ErrInvalidKey] or [core.ErrNoSeals], or the error of a context that ended.
func (c *Claims) Begin(ctx context.Context, r Request) (Outcome, error) {
	if r.Key == "" {
		return Outcome{}, fmt.Errorf("idempotency: %w: the key is empty", core.ErrInvalidKey)
	}
	if !c.locker.Seals() {
		return Outcome{}, fmt.Errorf("idempotency: key %q: %w", r.Key, core.ErrNoSeals)
	}
	spanned, span := c.instruments.start(ctx, "idempotency.begin")
	a := &attempt{
		Claims: c, Request: r, name: LockKey(c.locker, KeyPrefix, r.Key), mark: newMark(r.Fingerprint, r.ID, c.RunAgain),
	}
	lock, replay, err := a.begin(spanned)
	if err == nil && lock != nil {
		span.End()
		return Outcome{Claim: newClaim(ctx, a, lock)}, nil
	}
	o := replayed
	switch {
	case err != nil:
		o = outcomeOf(err)
	case replay.NotKept:
		o = notKept
	}
	out := Outcome{Replay: replay}
	// A request must not run beside a run that it knows of, nor if its own context ended.
	if o == storeDown && c.FailOpen && !a.begun {
		o, out, err = unprotected, Outcome{Unprotected: err}, nil
	}
	c.instruments.count(spanned, o, r.Route)
	o.end(span)
	return out, err
}

// attempt is a request that is asking for a claim.
type attempt struct {
	*Claims
	Request
	name    string // of the lock
	mark    mark
	adopted *UnknownError // the unknown outcome that the claim takes over
	begun   bool          // the backend has said that there is an earlier run
}

// begin returns the lock of a claim, or the record to answer from, or an error.
func (a *attempt) begin(ctx context.Context) (lock *core.Lock, replay *Record, err error) {
	if carries(ctx, a.locker, a.name) {
		return nil, nil, fmt.Errorf("idempotency: key %q: %w", a.name, ErrInFlight)
	}
	lock, err = a.acquire(ctx)
	if err == nil {
		return lock, nil, nil
	}
	if orphan, ok := errors.AsType[*core.OrphanedError](err); ok {
		a.begun = true
		if lock, err = a.adopt(ctx, orphan); err == nil {
			return lock, nil, nil
		}
	}
	replay, err = a.refused(err)
	return nil, replay, err
}

func (a *attempt) acquire(ctx context.Context) (*core.Lock, error) {
	opts := a.with(core.WithTag(a.tag(a.name, a.mark)))
	asking, answered := a.linger(ctx)
	lock, err := a.locker.TryAcquire(asking, a.name, opts...)
	answered()
	if a.Wait == 0 || err == nil {
		return lock, err
	}
	taken, ok := errors.AsType[*core.TakenError](err)
	if !ok {
		return nil, err
	}
	a.begun = true
	if theirs, ok := a.parseTag(a.name, taken.Tag); ok {
		if err := theirs.check(a.Fingerprint); err != nil {
			return nil, err
		}
	}
	return a.locker.Acquire(ctx, a.name, opts...)
}

// linger returns the context of a call that does not wait for another request.
func (a *attempt) linger(ctx context.Context) (longer context.Context, answered func() bool) {
	if a.HalfCloses {
		return Linger(ctx)
	}
	return ctx, func() bool { return true }
}

// mostOptions is how many options a claim has at most.
const mostOptions = 6

// with returns the options of every claim and those of one.
func (c *Claims) with(opts ...core.AcquireOption) []core.AcquireOption {
	return append(append(make([]core.AcquireOption, 0, mostOptions), c.options...), opts...)
}

// maxHold lets a lock be renewed while the handler runs, and somewhat longer.
func (c *Claims) maxHold() core.AcquireOption {
	return core.WithMaxHold(max(c.MaxRun, c.MaxRun+holdGrace)) // the sum may overflow
}

// adopt takes an unknown outcome over if somebody is there to decide about it.
func (a *attempt) adopt(ctx context.Context, orphan *core.OrphanedError) (*core.Lock, error) {
	unknown := a.unknown(orphan)
	m, ok := a.parseTag(a.name, ownerTag(orphan.Owner))
	if !ok {
		return nil, unknown // not even whose request it was can be read
	}
	if err := m.check(a.Fingerprint); err != nil {
		return nil, err
	}
	// The next one learns of the first run, too.
	a.mark.begun, a.mark.requestID = m.begun, m.requestID
	// A mark may be of a version of the service without RunAgain. Then nobody said that its run may
	// be repeated.
	again := a.RunAgain && m.again
	if !again && !a.Recovers {
		return nil, unknown
	}
	// The mark ends when the first one would have ended.
	left := ownertext.Orphan(orphan.Owner) - time.Since(orphan.Since)
	opts := a.with(core.WithTag(a.tag(a.name, a.mark)), core.WithOrphan(max(left, time.Minute)))
	asking, answered := a.linger(ctx)
	lock, err := a.locker.Adopt(asking, orphan, opts...)
	answered()
	if err == nil {
		a.adopted = unknown
		ctx, log := context.WithoutCancel(ctx), a.locker.Logger()
		run := []any{"instance", unknown.Run.Instance, "begun", unknown.Run.Begun, "key", a.name, "route", a.Route}
		if again {
			log.InfoContext(ctx, "idempotency: a run that failed or died is repeated (RunAgain)", run...)
		} else {
			log.InfoContext(ctx, "idempotency: a run of unknown outcome is taken over; Recover decides about it", run...)
		}
	}
	return lock, err
}

func (a *attempt) unknown(orphan *core.OrphanedError) *UnknownError {
	run := Run{Begun: ownertext.Asked(orphan.Owner), Instance: instanceOf(orphan.Owner)}
	if m, ok := a.parseTag(a.name, ownerTag(orphan.Owner)); ok {
		run.Begun, run.RequestID = time.UnixMilli(m.begun), m.requestID
	}
	return &UnknownError{Key: a.name, Run: run, Since: orphan.Since, orphan: orphan}
}

func ownerTag(owner string) string {
	_, tag := ownertext.Split(owner)
	return tag
}

func instanceOf(owner string) string {
	holder, _ := ownertext.Split(owner)
	instance, _, ours := strings.Cut(holder, "/")
	if !ours {
		return ""
	}
	return instance
}

// refused returns what an error of core means for a request.
func (a *attempt) refused(err error) (*Record, error) {
	if sealed, ok := errors.AsType[*core.SealedError](err); ok {
		record, m, err := a.decode(a.name, sealed.Value)
		if err == nil {
			err = m.check(a.Fingerprint)
		}
		if err != nil {
			return nil, fmt.Errorf("idempotency: key %q: %w", a.name, err)
		}
		return record, nil
	}
	if taken, ok := errors.AsType[*core.TakenError](err); ok {
		err = ErrInFlight
		if m, ok := a.parseTag(a.name, taken.Tag); ok {
			err = cmp.Or(m.check(a.Fingerprint), err)
		}
	} else if orphan, ok := errors.AsType[*core.OrphanedError](err); ok { // another one than the one to adopt
		return nil, a.unknown(orphan)
	}
	return nil, fmt.Errorf("idempotency: key %q: %w", a.name, err)
}

const (
	// KeyPrefix begins the key of every claim, and keeps claims apart from plain locks.
	KeyPrefix = "claim:"
	// StepPrefix begins the key of every step.
	StepPrefix = "claimstep:"

	// HashMark stands before the hash of a key that is not shown whole.
	HashMark = "sha256:"

	maxPlainKey  = 500 // core takes 512 bytes with the prefix
	maxBeginning = 400
)

// LockKey returns the key of the lock on l for the key of a claim or step. It is the key as it is,
// if core takes it. Otherwise it is the beginning of the key, by which onelanectl finds it, and the
// hash of the whole. Different keys never make the same one.
func LockKey(l *core.Locker, prefix, key string) string {
	braces := l.Prefix() != "" // without a prefix, core takes none
	refused := func(r rune) bool {
		return r == utf8.RuneError || unicode.IsControl(r) || !braces && (r == '{' || r == '}')
	}
	beginning := key
	if i := strings.Index(beginning, HashMark); i >= 0 {
		beginning = beginning[:i]
	}
	if i := strings.IndexFunc(beginning, refused); i >= 0 {
		beginning = beginning[:i]
	}
	if len(beginning) == len(key) && len(key) <= maxPlainKey {
		return prefix + key
	}
	if len(beginning) > maxBeginning {
		beginning = strings.ToValidUTF8(beginning[:maxBeginning], "")
	}
	sum := sha256.Sum256([]byte(key))
	return prefix + beginning + HashMark + hex.EncodeToString(sum[:])
}

// Cache holds the Claims on a Locker. It changes if core.SetDefault is called again. Its zero value
// is ready, and it is safe for concurrent use.
type Cache struct{ made atomic.Pointer[Claims] }

// On returns the Claims on l. See [New].
func (c *Cache) On(l *core.Locker, transport string, s Settings) *Claims {
	if made := c.made.Load(); made != nil && made.locker == l {
		return made
	}
	made := New(l, transport, s)
	c.made.Store(made)
	return made
}

// CountWithoutKey counts a request that runs unprotected because it has no key.
func (c *Claims) CountWithoutKey(ctx context.Context, route string) {
	c.instruments.count(ctx, withoutKey, route)
}

package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/onelane/onelane/core"
)

// Claims gives out claims on keys of one [core.Locker]. It is safe for concurrent use. Make it once: it holds the
// instruments that it reports with.
type Claims struct {
	locker        *core.Locker
	retention     time.Duration
	wait          time.Duration
	failOpen      bool
	transport     string
	compressAbove int // -1: never
	keys          []EncryptionKey
	readPlain     bool
	runUnreadable bool

	instruments *instruments
}

// Outcome says what to do with a request: exactly one of its fields is set.
type Outcome struct {
	// Claim is set when the request is to be run.
	Claim *Claim
	// Replay is set when it ran already: answer from it. It must not be modified.
	Replay *Record
	// Unprotected is set, with [WithFailOpen] only, when the backend is not available: run the request without a claim.
	// It is the error that Begin would have returned.
	Unprotected error
}

// Begin asks for the claim on key, a text of any length that is not empty, for the request that fp tells of. A key
// names one request: its parts (who asks, for what, the client's own key) should be joined by [core.Join].
//
// It talks to Redis once, unless it waits (see [WithWait]). The error is [*InFlightError], [*MismatchError], one that
// matches [ErrRecord], or an error of core: [*core.UnavailableError], or one that matches [core.ErrClosed],
// [core.ErrInvalidKey], [core.ErrOrphaned] or, when ctx ended first, its error. If ctx carries the claim on this key itself the answer is [*InFlightError].
func (c *Claims) Begin(ctx context.Context, key string, fp Fingerprint) (Outcome, error) {
	if key == "" {
		return Outcome{}, fmt.Errorf("idempotency: %w: it is empty", core.ErrInvalidKey)
	}
	fp.transport = c.transport
	spanned, span := c.instruments.start(ctx, "idempotency.begin")
	r := &request{Claims: c, key: key, name: lockKey(key), fp: fp}
	lock, replay, err := r.begin(spanned)
	if err == nil && lock != nil {
		span.End()
		return Outcome{Claim: newClaim(ctx, r, lock)}, nil
	}
	o := replayed
	switch {
	case err != nil:
		o = outcomeOf(err)
	case replay.NotKept:
		o = notKept
	}
	out := Outcome{Replay: replay}
	if o == storeDown && c.failOpen { // not where ctx has ended: who asks no more must not run beside the one that has the key
		o, out, err = unprotected, Outcome{Unprotected: err}, nil
	}
	c.instruments.count(spanned, o)
	o.end(span)
	return out, err
}

// request is one that asks for a claim.
type request struct {
	*Claims
	key, name string // as it was passed to Begin, and of its lock
	fp        Fingerprint
	mark      mark
}

// begin returns the lock of a claim, or the record to answer from, or an error.
func (r *request) begin(ctx context.Context) (*core.Lock, *Record, error) {
	if carries(ctx, r.name) {
		return nil, nil, &InFlightError{Key: r.key}
	}
	lock, err := r.acquire(ctx)
	if err == nil {
		return lock, nil, nil
	}
	replay, err := r.refused(err)
	if errors.Is(err, ErrRecord) && r.runUnreadable {
		return r.replace(ctx, err)
	}
	return nil, replay, err
}

func (r *request) acquire(ctx context.Context) (*core.Lock, error) {
	r.mark = newMark(r.fp)
	lock, err := r.locker.TryAcquire(ctx, r.name, core.WithTag(r.tag(r.name, r.mark)))
	var taken *core.TakenError
	if r.wait == 0 || !errors.As(err, &taken) {
		return lock, err
	}
	tag := taken.Tag // the same as the holder's, so that a claim it abandons is handed over
	if theirs, ok := r.parseTag(r.name, tag); !ok {
		tag = r.tag(r.name, r.mark)
	} else if err := theirs.check(r.key, r.fp); err != nil {
		return nil, err
	}
	opts := []core.AcquireOption{core.WithTag(tag), core.WithWait(r.wait)}
	if r.failOpen {
		opts = append(opts, core.WithOutageWait(0)) // the request runs unprotected instead
	}
	return r.locker.Acquire(ctx, r.name, opts...)
}

// refused says what an error of core means for a request.
func (r *request) refused(err error) (*Record, error) {
	var sealed *core.SealedError
	if errors.As(err, &sealed) {
		record, m, err := r.decode(r.name, sealed.Value)
		if err != nil {
			return nil, fmt.Errorf("idempotency: key %q: %w", r.key, err)
		}
		if err := m.check(r.key, r.fp); err != nil {
			return nil, err
		}
		return record, nil
	}
	var taken *core.TakenError
	if errors.As(err, &taken) {
		if m, ok := r.parseTag(r.name, taken.Tag); ok {
			if err := m.check(r.key, r.fp); err != nil {
				return nil, err
			}
		}
		return nil, &InFlightError{Key: r.key, RetryAfter: taken.RetryAfter, Cause: taken}
	}
	if errors.Is(err, ErrMismatch) {
		return nil, err
	}
	return nil, fmt.Errorf("idempotency: key %q: %w", r.key, err)
}

// replace removes a record that cannot be read, and takes the claim. One at a time does that, under a lock of its own,
// and looks again: what is removed must be what could not be read, not what somebody else recorded meanwhile.
func (r *request) replace(ctx context.Context, unreadable error) (*core.Lock, *Record, error) {
	sum := sha256.Sum256([]byte(r.name))
	repair, err := r.locker.TryAcquire(ctx, "repair:"+hex.EncodeToString(sum[:]))
	if errors.Is(err, core.ErrTaken) {
		return nil, nil, &InFlightError{Key: r.key, Cause: err}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("idempotency: key %q: %w", r.key, err)
	}
	defer func() { _ = repair.Release(ctx) }() // it lapses otherwise
	for removed := false; ; removed = true {
		lock, err := r.acquire(ctx)
		if err == nil {
			return lock, nil, nil
		}
		replay, err := r.refused(err)
		if !errors.Is(err, ErrRecord) || removed {
			return nil, replay, err
		}
		r.locker.Logger().WarnContext(ctx, "idempotency: a record cannot be read; it is removed, and its request runs again (RunUnreadable)", "key", r.key, "error", unreadable)
		if err := r.locker.Unseal(ctx, r.name); err != nil {
			return nil, nil, fmt.Errorf("idempotency: key %q: %w", r.key, err)
		}
	}
}

const (
	claimPrefix = "claim:" // apart from the keys of plain locks
	hashPrefix  = "sha256:"
	maxPlainKey = 500 // with the prefix, core takes 512 bytes
)

// lockKey is the key of the lock. It shows the key as it is where core takes it, in any prefix, and its hash
// otherwise; different keys never make the same one.
func lockKey(key string) string {
	plain := len(key) <= maxPlainKey && !strings.HasPrefix(key, hashPrefix) && !strings.ContainsAny(key, "{}") &&
		utf8.ValidString(key) && strings.IndexFunc(key, unicode.IsControl) < 0
	if plain {
		return claimPrefix + key
	}
	sum := sha256.Sum256([]byte(key))
	return claimPrefix + hashPrefix + hex.EncodeToString(sum[:])
}

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

const (
	defaultRetention = 24 * time.Hour
	minRetention     = 10 * time.Millisecond
)

// Claims gives out claims on keys of one [core.Locker]. It is safe for concurrent use, and cheap to make.
type Claims struct {
	locker    *core.Locker
	retention time.Duration
	wait      time.Duration
}

// Option configures [Claims]. A nil Option is ignored, the later of two wins.
type Option interface{ apply(*Claims) }

type option func(*Claims)

func (o option) apply(c *Claims) { o(c) }

// WithRetention sets how long a record is kept: after that its key runs anew. Default 24 h, at least 10 ms.
func WithRetention(d time.Duration) Option { return option(func(c *Claims) { c.retention = d }) }

// WithWait makes Begin wait for a running request for up to d, and answer from its record. By default it does not
// wait.
func WithWait(d time.Duration) Option { return option(func(c *Claims) { c.wait = d }) }

// New returns Claims on l. It panics, since that is a mistake in the program, if l is nil, the retention too short or
// the wait negative.
func New(l *core.Locker, opts ...Option) *Claims {
	c := &Claims{locker: l, retention: defaultRetention}
	for _, o := range opts {
		if o != nil {
			o.apply(c)
		}
	}
	switch {
	case l == nil:
		panic("idempotency: New needs a core.Locker: pass the one that core.New returned, after checking its error")
	case c.retention < minRetention:
		panic(fmt.Sprintf("idempotency: WithRetention(%v): records must be kept for at least %v", c.retention, minRetention))
	case c.wait < 0:
		panic(fmt.Sprintf("idempotency: WithWait(%v): leave it away not to wait", c.wait))
	}
	return c
}

// Outcome says what to do with a request: exactly one of its fields is set.
type Outcome struct {
	// Claim is set when the request is to be run.
	Claim *Claim
	// Replay is set when it ran already: answer from it. It must not be modified.
	Replay *Record
}

// Begin asks for the claim on key, a text of any length that is not empty, for the request that fp tells of. A key
// names one request: its parts (who asks, for what, the client's own key) should be joined by [core.Join].
//
// It talks to Redis once, unless it waits (see [WithWait]). The error is [*InFlightError], [*MismatchError], one that
// matches [ErrRecord], or an error of core: [*core.UnavailableError], or one that matches [core.ErrClosed] or
// [core.ErrInvalidKey]. If ctx carries the claim on this key itself the answer is [*InFlightError].
func (c *Claims) Begin(ctx context.Context, key string, fp Fingerprint) (Outcome, error) {
	if key == "" {
		return Outcome{}, fmt.Errorf("idempotency: %w: it is empty", core.ErrInvalidKey)
	}
	name := lockKey(key)
	if carries(ctx, name) {
		return Outcome{}, &InFlightError{Key: key}
	}
	m := newMark(fp)
	lock, err := c.locker.TryAcquire(ctx, name, core.WithTag(m.tag()))
	var taken *core.TakenError
	if errors.As(err, &taken) && c.wait > 0 {
		if theirs, ok := parseTag(taken.Tag); ok {
			if err := theirs.check(key, fp); err != nil {
				return Outcome{}, err
			}
			m = theirs // the same tag as the holder's, so that a claim it abandons is handed over
		}
		lock, err = c.locker.Acquire(ctx, name, core.WithTag(m.tag()), core.WithWait(c.wait))
	}
	if err != nil {
		return refused(key, fp, err)
	}
	return Outcome{Claim: newClaim(ctx, c, key, m, lock)}, nil
}

// refused says what an error of core means for a request.
func refused(key string, fp Fingerprint, err error) (Outcome, error) {
	var sealed *core.SealedError
	if errors.As(err, &sealed) {
		r, m, err := decode(sealed.Value)
		if err != nil {
			return Outcome{}, fmt.Errorf("idempotency: key %q: %w", key, err)
		}
		if err := m.check(key, fp); err != nil {
			return Outcome{}, err
		}
		return Outcome{Replay: r}, nil
	}
	var taken *core.TakenError
	if errors.As(err, &taken) {
		if m, ok := parseTag(taken.Tag); ok {
			if err := m.check(key, fp); err != nil {
				return Outcome{}, err
			}
		}
		return Outcome{}, &InFlightError{Key: key, RetryAfter: taken.RetryAfter, Cause: taken}
	}
	return Outcome{}, fmt.Errorf("idempotency: key %q: %w", key, err)
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

package claim

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

// ErrKnown means that the outcome of a key is not unknown, so that nothing was done.
var ErrKnown = errors.New("idempotency: no outcome is unknown under this key; nothing was done")

// Description is what an operator can know of a claim or a step.
type Description struct {
	// Run is the first run, and names the instance of the last one.
	Run Run
	// Status is the status of a recorded answer, or 0.
	Status int
	// NotKept means that the answer was not kept.
	NotKept bool
	// Again means that a retry runs if the run has ended without an answer.
	Again bool
	// Encrypted names the key that the rest is encrypted with, if that is not at hand.
	Encrypted string
	// Payload is the salt and the salted hash of the payload, in hex. It stays the same for as long as
	// a key belongs to one request.
	Payload string
}

// Describe describes the claim or step under the key of a lock, as far as that is not encrypted. If
// the key belongs to neither, ok is false.
func Describe(name string, st core.State) (d Description, ok bool) {
	return new(Claims).Describe(name, st)
}

// Describe is [Describe] with the encryption keys of c.
func (c *Claims) Describe(name string, st core.State) (d Description, ok bool) {
	if !IsClaim(name) {
		return d, false
	}
	switch st.Status {
	case core.Held, core.Orphaned:
		d.Run = Run{Begun: ownertext.Asked(st.Owner), Instance: instanceOf(st.Owner)}
		tag := ownerTag(st.Owner)
		if m, ok := c.parseTag(name, tag); ok {
			d.Run.Begun, d.Run.RequestID, d.Again, d.Payload = time.UnixMilli(m.begun), m.requestID, m.again, m.shown()
		} else if text, encrypted := strings.CutPrefix(tag, encryptedTag); encrypted {
			d.Encrypted, _, _ = strings.Cut(text, ".")
		}
		return d, true
	case core.Sealed:
		p, err := unmarshal(st.Value)
		if err != nil {
			return d, false
		}
		if _, known := c.key(p.KeyId); p.Version == envelopeVersion && !known {
			return Description{Encrypted: p.KeyId}, true
		}
		if r, m, err := c.decode(name, st.Value); err == nil {
			return Description{Run: r.Run, Status: r.Status, NotKept: r.NotKept, Payload: m.shown()}, true
		}
	}
	return d, false
}

func (m *mark) shown() string {
	return hex.EncodeToString(m.salt[:]) + ":" + hex.EncodeToString(m.payload[:])
}

// Answer records an answer for a run of unknown outcome, as if that run had given it. It is for an
// operator who knows what the run did. name is the key of the lock. If the outcome is known, or a
// run has the key, the error matches [ErrKnown].
func (c *Claims) Answer(ctx context.Context, name string, r *Record) error {
	failed := func(err error) error { return fmt.Errorf("idempotency: answer for key %q: %w", name, err) }
	st, err := c.locker.Inspect(ctx, name)
	if err != nil {
		return failed(err)
	}
	if st.Status != core.Orphaned {
		return failed(fmt.Errorf("it is %v: %w", st.Status, ErrKnown))
	}
	tag := ownerTag(st.Owner)
	m, ok := c.parseTag(name, tag)
	if !ok {
		return failed(errors.New("the claim cannot be read: pass the encryption keys of the service, or ReadPlain"))
	}
	value, err := c.encode(name, r, &m, Run{Begun: time.UnixMilli(m.begun), Instance: instanceOf(st.Owner)})
	if err != nil {
		return failed(err)
	}
	// The answer stays for as long as the mark would have.
	retention := max(st.ExpiresIn, MinRetention)
	if st.ExpiresIn == 0 {
		retention = DefaultRetention
	}
	orphan := &core.OrphanedError{Key: name, Owner: st.Owner, Since: st.Since}
	lock, err := c.locker.Adopt(ctx, orphan, core.WithWait(0), core.WithTag(tag), core.WithOrphan(max(retention, time.Minute)))
	switch {
	case errors.Is(err, core.ErrTaken), errors.Is(err, core.ErrSealed), errors.Is(err, core.ErrOrphaned):
		return failed(fmt.Errorf("%w: %w", ErrKnown, err)) // somebody came first
	case err != nil:
		return failed(err)
	}
	if err := lock.Seal(ctx, value, retention); err != nil {
		leave(ctx, lock)
		return failed(err)
	}
	return nil
}

// IsClaim reports whether the key of a lock is that of a claim or a step.
func IsClaim(name string) bool {
	return strings.HasPrefix(name, KeyPrefix) || strings.HasPrefix(name, StepPrefix)
}

// Look returns the key of a lock and its state. A log may name a claim without its prefix.
func Look(ctx context.Context, l *core.Locker, key string) (string, core.State, error) {
	found, st, err := lookWhole(ctx, l, key)
	nothing := err == nil && st.Status == core.Free || errors.Is(err, core.ErrInvalidKey)
	if !nothing || IsClaim(key) {
		return found, st, err
	}
	ofClaim, claimed, failed := lookWhole(ctx, l, KeyPrefix+key)
	if failed == nil && claimed.Status == core.Free {
		return found, st, err
	}
	return ofClaim, claimed, failed
}

// lookWhole returns the key of a lock and its state. A list of keys has the key of the lock itself.
// The log has the whole key of a claim, whose lock may have a hash in its key. A whole key can look
// like that of a lock, so both are tried. One that a list may have shown is not free if it cannot be
// read.
func lookWhole(ctx context.Context, l *core.Locker, key string) (string, core.State, error) {
	st, err := l.Inspect(ctx, key)
	whole := key
	for _, prefix := range []string{KeyPrefix, StepPrefix} {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			whole = LockKey(l, prefix, rest)
		}
	}
	if whole == key || err == nil && st.Status != core.Free || err != nil && !errors.Is(err, core.ErrInvalidKey) {
		return key, st, err
	}
	other, failed := l.Inspect(ctx, whole)
	if failed == nil && other.Status == core.Free && (err == nil || strings.Contains(key, HashMark)) {
		return key, st, err
	}
	return whole, other, failed
}

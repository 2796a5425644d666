package claim_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil/backendtest"
)

// onceThenDown answers the first of the acquires after arm, and none after that.
type onceThenDown struct {
	core.Sealer
	armed atomic.Bool
	left  atomic.Int64
}

func (b *onceThenDown) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b *onceThenDown) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	if b.armed.Load() && b.left.Add(-1) < 0 {
		return core.Grant{}, &core.UnavailableError{Key: r.Key, Nodes: []error{errors.New("down")}}
	}
	return b.Sealer.Acquire(ctx, r)
}

// The backend has just said that the outcome is unknown, and then goes away: FailOpen must not run the handler.
func TestFailOpen_AfterOrphaned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &onceThenDown{Sealer: backendtest.Memory()}
		l := newLocker(t, b, core.WithTTL(time.Second))
		leave(t, newClaims(l), "k", fp("a"))
		time.Sleep(2 * time.Second)
		b.left.Store(1)
		b.armed.Store(true)
		out, err := ask(t.Context(), newClaims(l, recovers, failOpen), "k", fp("a"))
		if out.Unprotected != nil {
			t.Errorf("runs unprotected, although the outcome was known to be unknown: %v, %v", out.Unprotected, err)
		}
		time.Sleep(time.Minute)
	})
}

// The backend has just said that the first request runs.
func TestFailOpen_WhileTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &onceThenDown{Sealer: backendtest.Memory()}
		l := newLocker(t, b)
		k := begin(t, newClaims(l), "k", fp("a"))
		other := newLocker(t, b)
		b.left.Store(1)
		b.armed.Store(true)
		out, err := ask(t.Context(), newClaims(other, failOpen, waiting(5*time.Second)), "k", fp("a"))
		if out.Unprotected != nil {
			t.Errorf("runs unprotected beside the first: %v, %v", out.Unprotected, err)
		}
		b.armed.Store(false)
		complete(t, k, "x")
		time.Sleep(time.Minute)
	})
}

func never(error) bool { return false }

// The mark of an unknown outcome outlives the results of its steps.
func TestStep_OutlivesTheMark(t *testing.T) {
	for name, change := range map[string]struct {
		keep  time.Duration // RetainFor
		still bool          // somebody said StillUnknown in between
		after time.Duration
	}{
		"RetainFor":    {time.Minute, false, 2 * time.Minute},
		"StillUnknown": {0, true, 24*time.Hour - time.Minute},
		"long run":     {0, false, 24*time.Hour + time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLocker(t, backendtest.Memory())
				c := newClaims(l, recovers)
				charges := 0
				charge := func(context.Context) ([]byte, error) { charges++; return []byte("1"), nil }
				begun := time.Now()
				k := begin(t, c, "k", fp("a"))
				if change.keep > 0 {
					k.KeepFor(change.keep)
				}
				_, err := k.Step(k.Context(), "charge", charge, never)
				ok(t, "Step", err)
				time.Sleep(4 * time.Minute * time.Duration(b2i(change.keep == 0)))
				k.LeaveUnknown()
				k.Close()
				if change.still {
					time.Sleep(20 * time.Hour)
					k = begin(t, c, "k", fp("a"))
					k.LeaveUnknown()
					k.Close()
				}
				time.Sleep(time.Until(begun.Add(change.after)))
				k = begin(t, c, "k", fp("a"))
				if k.Adopted() == nil {
					t.Fatal("the key is free: it would run anew")
				}
				_, err = k.Step(k.Context(), "charge", charge, never)
				ok(t, "Step", err)
				if charges != 1 {
					t.Errorf("%d charges, although the key remembers the first run", charges)
				}
				complete(t, k, "x")
				time.Sleep(time.Minute)
			})
		})
	}
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// A deployment makes Retain shorter. The mark of an unknown outcome lasts as long as the process
// said that left it, even after a new process adopted it. The steps of the new one must last as
// long, or the charge is made twice.
func TestStep_OutlivesTheMarkOfALongerRetention(t *testing.T) {
	broken := errors.New("broken")
	for name, fails := range map[string]error{"a result": nil, "no result": broken} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLocker(t, backendtest.Memory())
				before, now := newClaims(l, recovers, keep(24*time.Hour)), newClaims(l, recovers, keep(time.Hour))
				charges := 0
				charge := func(context.Context) ([]byte, error) { charges++; return []byte("1"), fails }
				leave(t, before, "k", fp("a")) // its pod is replaced
				time.Sleep(time.Minute)
				k := begin(t, now, "k", fp("a"))
				_, err := k.Step(k.Context(), "charge", charge, never)
				want(t, "the first Step", err, fails)
				k.LeaveUnknown() // this one dies, too
				k.Close()
				time.Sleep(2 * time.Hour)
				k = begin(t, now, "k", fp("a"))
				if k.Adopted() == nil {
					t.Fatal("the key is free: it would run anew")
				}
				_, err = k.Step(k.Context(), "charge", charge, never)
				if charges != 1 {
					t.Errorf("%d charges, although the key remembers the first run", charges)
				}
				if fails == nil {
					ok(t, "the second Step", err)
				} else {
					want(t, "the second Step", err, claim.ErrUnknown)
				}
				complete(t, k, "x")
				time.Sleep(time.Minute)
			})
		})
	}
}

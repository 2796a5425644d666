package backendtest

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/onelane/onelane/core"
)

var sealCases = []suiteCase{
	{"Seal_SwapsTheKeyForAValue", (*suite).sealSwaps},
	{"Seal_WithoutToken", (*suite).sealWithoutToken},
	{"Seal_OutlivesTheLease", (*suite).sealOutlives},
	{"Seal_EndsWithItsRetention", (*suite).sealEnds},
	{"Seal_Again", (*suite).sealAgain},
	{"Seal_OnlyTheHolder", (*suite).sealOnlyTheHolder},
	{"Seal_ExpiredLease", (*suite).sealExpired},
	{"Seal_ThenRelease", (*suite).sealThenRelease},
	{"Unseal_FreesTheKey", (*suite).unsealFrees},
	{"Unseal_LeavesHeldKeys", (*suite).unsealLeavesHeld},
	{"SealerVerbs_CanceledContext", (*suite).sealsCanceled},
}

func (s *suite) sealsCanceled() {
	s.canceled(map[string]func(context.Context, core.Grant) error{
		"Seal":   func(ctx context.Context, g core.Grant) error { return s.sealer().Seal(ctx, g, nil, long) },
		"Orphan": func(ctx context.Context, g core.Grant) error { return s.sealer().Orphan(ctx, g) },
		"Unseal": func(ctx context.Context, g core.Grant) error { return s.sealer().Unseal(ctx, g.Key) },
	})
}

// sealed checks what a caller gets that wants the key.
func (s *suite) sealed(key string, value []byte, token uint64) {
	s.Helper()
	_, err := s.refused("Acquire of a sealed key", s.request(key, long), core.ErrSealed)
	var sealed *core.SealedError
	if !errors.As(err, &sealed) || !bytes.Equal(sealed.Value, value) || sealed.Token != token {
		s.Fatalf("got %d bytes with token %d, want %d with token %d", len(sealed.Value), sealed.Token, len(value), token)
	}
}

// acquireWithToken holds a new key.
func (s *suite) acquireWithToken() lease {
	s.Helper()
	r := s.request(s.key(), long)
	r.Token = true
	return s.acquire(r)
}

func (s *suite) sealSwaps() {
	large := make([]byte, 1<<20)
	for i := range large {
		large[i] = byte(i * 7)
	}
	for _, value := range [][]byte{[]byte("the answer"), {}, {0}, []byte("12:34"), []byte(":"), large} {
		g := s.acquireWithToken()
		sealer := g.Grant
		sealer.Token += g.Tokens - 1 // the last local holder
		s.ok("Seal", s.seal(sealer, value, long))
		s.sealed(g.Key, value, sealer.Token)
		st := s.inspect(g.Key)
		if st.Status != core.Sealed || !bytes.Equal(st.Value, value) || st.Token != sealer.Token || !st.Since.IsZero() {
			s.Fatalf("Inspect = %v with %d bytes, token %d, since %v", st.Status, len(st.Value), st.Token, st.Since)
		}
		if st.ExpiresIn <= long/2 || st.ExpiresIn > long+slack {
			s.Fatalf("ExpiresIn = %v, want about %v", st.ExpiresIn, long)
		}
	}
}

func (s *suite) sealWithoutToken() {
	g := s.acquire(s.request(s.key(), long))
	s.ok("Seal", s.seal(g.Grant, []byte("v"), long))
	s.sealed(g.Key, []byte("v"), g.Token)
	s.ok("Seal again", s.seal(g.Grant, []byte("v"), long))
	s.ok("Release by the sealer", s.release(g.Grant))
	s.sealed(g.Key, []byte("v"), g.Token)
	s.unseal(g.Key)
	s.free(g.Key)
}

func (s *suite) sealOutlives() {
	s.patient(func(ttl time.Duration) bool {
		g := s.acquire(s.request(s.key(), ttl))
		err := s.seal(g.Grant, []byte("v"), long)
		if errors.Is(err, core.ErrLost) && time.Now().After(g.Deadline) {
			return false
		}
		s.ok("Seal", err)
		time.Sleep(time.Until(g.answered.Add(g.ttl + slack)))
		s.sealed(g.Key, []byte("v"), g.Token)
		return true
	})
}

func (s *suite) sealEnds() {
	s.patient(func(ttl time.Duration) bool {
		retention := 2 * ttl
		g := s.acquire(s.request(s.key(), long))
		asked := time.Now()
		err := s.seal(g.Grant, []byte("v"), retention)
		if errors.Is(err, core.ErrLost) && time.Now().After(asked.Add(retention)) {
			return false // a try before sealed it, and its answer was late
		}
		s.ok("Seal", err)
		time.Sleep(time.Until(asked.Add(retention - slack)))
		st, err := s.b.Inspect(s.ctx, g.Key)
		if before := time.Now().Before(asked.Add(retention - slack/5)); before && err == nil && st.Status != core.Sealed {
			s.Fatalf("before the end of the retention the key is %v", st.Status)
		}
		s.awaitStatus(g.Key, core.Free)
		s.acquire(s.request(g.Key, long))
		return true
	})
}

func (s *suite) sealAgain() {
	g := s.acquireWithToken()
	s.ok("Seal", s.seal(g.Grant, []byte("v"), long))
	s.ok("Seal again, as after a lost reply", s.seal(g.Grant, []byte("v"), long))
	s.want("Seal with another value", s.seal(g.Grant, []byte("w"), long), core.ErrLost)
	s.sealed(g.Key, []byte("v"), g.Token)
}

func (s *suite) sealOnlyTheHolder() {
	g := s.acquireWithToken()
	other := g.Grant
	other.Owner = s.owner(0)
	s.want("Seal by another", s.seal(other, []byte("v"), long), core.ErrLost)
	s.held(g.Key, g.Owner)
	s.ok("Release", s.release(g.Grant))
	s.want("Seal of a free key", s.seal(g.Grant, []byte("v"), long), core.ErrLost)
	s.free(g.Key)
	s.acquire(s.request(g.Key, long))
}

func (s *suite) sealExpired() {
	g := s.acquire(s.request(s.key(), short))
	s.expired(g)
	s.want("Seal of an expired lease", s.seal(g.Grant, []byte("v"), long), core.ErrLost)
	s.free(g.Key)
	next := s.acquire(s.request(g.Key, long))
	s.want("Seal of an expired lease, the key another's", s.seal(g.Grant, []byte("v"), long), core.ErrLost)
	s.held(g.Key, next.Owner)
}

func (s *suite) sealThenRelease() {
	g := s.acquireWithToken()
	s.ok("Seal", s.seal(g.Grant, []byte("v"), long))
	s.ok("Release by the sealer", s.release(g.Grant))
	s.sealed(g.Key, []byte("v"), g.Token)
	_, err := s.extend(g.Grant, long)
	s.want("Extend of a sealed key", err, core.ErrLost)
	other := g.Grant
	other.Owner, other.Token = s.owner(0), g.Token+g.Tokens
	s.want("Release of a seal by another", s.release(other), core.ErrLost)
	s.sealed(g.Key, []byte("v"), g.Token)
}

func (s *suite) unsealFrees() {
	g := s.acquireWithToken()
	s.ok("Seal", s.seal(g.Grant, []byte("v"), long))
	s.unseal(g.Key)
	s.free(g.Key)
	s.unseal(g.Key) // of a free key
	s.acquire(s.request(g.Key, long))
}

func (s *suite) unsealLeavesHeld() {
	key := s.key()
	s.unseal(key)
	s.free(key)
	g := s.acquire(s.request(key, long))
	s.unseal(key)
	s.held(key, g.Owner)
}

package testutil

import (
	"bytes"
	"errors"
	"time"

	"github.com/onelane/onelane/core"
)

// sealed checks what a caller who wants the key gets.
func (s *suite) sealed(key string, value []byte, token uint64) {
	s.Helper()
	_, err := s.b.Acquire(s.ctx, key, s.owner(), long)
	s.want("Acquire of a sealed key", err, core.ErrSealed)
	var sealed *core.SealedError
	if !errors.As(err, &sealed) || !bytes.Equal(sealed.Value, value) || sealed.Token != token {
		s.Fatalf("got %d bytes with token %d, want %d with token %d", len(sealed.Value), sealed.Token, len(value), token)
	}
	if sealed.ExpiresIn <= 0 || sealed.ExpiresIn > long {
		s.Fatalf("ExpiresIn = %v", sealed.ExpiresIn)
	}
}

func (s *suite) sealSwaps() {
	large := make([]byte, 1<<20)
	for i := range large {
		large[i] = byte(i * 7)
	}
	for _, value := range [][]byte{[]byte("the answer"), {}, {0}, []byte("12:34"), []byte(":"), large} {
		key := s.key()
		g := s.acquire(key, long)
		token := g.Token + g.Tokens - 1
		s.ok("Seal", s.b.Seal(s.ctx, g, token, value, long))
		s.sealed(key, value, token)
		st, err := s.b.Inspect(s.ctx, key)
		if err != nil || st.Status != core.Sealed || !bytes.Equal(st.Value, value) || st.Token != token || st.ExpiresIn <= 0 {
			s.Fatalf("Inspect = %v with %d bytes, token %d, %v; %v", st.Status, len(st.Value), st.Token, st.ExpiresIn, err)
		}
	}
}

func (s *suite) sealIsKept() {
	key := s.key()
	g := s.acquire(key, short)
	s.ok("Seal", s.b.Seal(s.ctx, g, g.Token, []byte("v"), 4*short))
	time.Sleep(2 * short) // beyond the lease
	s.sealed(key, []byte("v"), g.Token)
	for range 500 {
		if _, err := s.b.Acquire(s.ctx, key, s.owner(), long); !errors.Is(err, core.ErrSealed) {
			s.ok("Acquire after the retention", err)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.Fatal("the seal stayed beyond its retention")
}

func (s *suite) sealAgain() {
	key := s.key()
	g := s.acquire(key, long)
	s.ok("Seal", s.b.Seal(s.ctx, g, g.Token, []byte("v"), long))
	s.ok("Seal again, as after a lost reply", s.b.Seal(s.ctx, g, g.Token, []byte("v"), long))
	s.want("Seal with another value", s.b.Seal(s.ctx, g, g.Token, []byte("w"), long), core.ErrLost)
	s.sealed(key, []byte("v"), g.Token)
}

func (s *suite) onlyTheHolderSeals() {
	key := s.key()
	g := s.acquire(key, long)
	other := g
	other.Owner = s.owner()
	s.want("Seal by another", s.b.Seal(s.ctx, other, other.Token, []byte("v"), long), core.ErrLost)
	s.held(key, g.Owner)
	s.ok("Release", s.b.Release(s.ctx, g))
	s.want("Seal of a free key", s.b.Seal(s.ctx, other, other.Token, []byte("v"), long), core.ErrLost)
	s.acquire(key, long)

	key = s.key()
	g = s.acquire(key, short)
	s.expire(g)
	s.want("Seal of an expired lease", s.b.Seal(s.ctx, g, g.Token, []byte("v"), long), core.ErrLost)
	s.acquire(key, long)
}

func (s *suite) releaseAfterSeal() {
	key := s.key()
	g := s.acquire(key, long)
	s.ok("Seal", s.b.Seal(s.ctx, g, g.Token, []byte("v"), long))
	s.ok("Release by who sealed", s.b.Release(s.ctx, g))
	s.sealed(key, []byte("v"), g.Token)
	_, err := s.b.Extend(s.ctx, g, long)
	s.want("Extend of a sealed key", err, core.ErrLost)
	other := g
	other.Owner, other.Token = s.owner(), g.Token+g.Tokens
	s.want("Release of a seal by another", s.b.Release(s.ctx, other), core.ErrLost)
	s.sealed(key, []byte("v"), g.Token)
}

func (s *suite) unsealFrees() {
	key := s.key()
	g := s.acquire(key, long)
	token := g.Token + g.Tokens - 1
	s.ok("Seal", s.b.Seal(s.ctx, g, token, []byte("v"), long))
	s.ok("Unseal", s.b.Unseal(s.ctx, key))
	next := s.acquire(key, long)
	if next.Token <= token {
		s.Fatalf("token %d after a seal with token %d", next.Token, token)
	}
}

func (s *suite) unsealTouchesOnlySeals() {
	key := s.key()
	s.ok("Unseal of a free key", s.b.Unseal(s.ctx, key))
	g := s.acquire(key, long)
	s.ok("Unseal of a held key", s.b.Unseal(s.ctx, key))
	s.held(key, g.Owner)
}

func (s *suite) inspectChangesNothing() {
	key := s.key()
	if st, err := s.b.Inspect(s.ctx, key); err != nil || st.Status != core.Free || st.Owner != "" {
		s.Fatalf("Inspect of a free key = %+v, %v", st, err)
	}
	g := s.acquire(key, long)
	st, err := s.b.Inspect(s.ctx, key)
	if err != nil || st.Status != core.Held || st.Owner != g.Owner || st.Token != g.Token {
		s.Fatalf("Inspect = %+v, %v; want owner %q, token %d", st, err, g.Owner, g.Token)
	}
	if st.ExpiresIn <= long/2 || st.ExpiresIn > long {
		s.Fatalf("ExpiresIn = %v, want about %v", st.ExpiresIn, long)
	}
	s.ok("Release after Inspect", s.b.Release(s.ctx, g))
}

func (s *suite) watchIsTold() {
	w, ok := s.b.(core.Watcher)
	if !ok {
		s.Log("this backend has no Watch: its waiters poll")
		return
	}
	changes := map[string]func(key string, g core.Grant) error{
		"Release": func(_ string, g core.Grant) error { return s.b.Release(s.ctx, g) },
		"Seal":    func(_ string, g core.Grant) error { return s.b.Seal(s.ctx, g, g.Token, nil, long) },
	}
	for name, change := range changes {
		key := s.key()
		g := s.acquire(key, long)
		changed, stop, err := w.Watch(s.ctx, key)
		s.ok("Watch", err)
		s.ok(name, change(key, g))
		select {
		case <-changed:
		case <-time.After(5 * time.Second):
			s.Fatalf("Watch was not told of %s", name)
		}
		stop()
	}
}

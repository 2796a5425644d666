package backendtest

import (
	"errors"
	"time"

	"github.com/onelane/onelane/core"
)

var tokenCases = []suiteCase{
	{"Token_OnlyIfAsked", (*suite).tokenOnlyIfAsked},
	{"Token_IncreasesAfterRelease", (*suite).tokensAfterRelease},
	{"Token_IncreasesAfterExpiry", (*suite).tokensAfterExpiry},
	{"Mint_Again", (*suite).mintAgain},
	{"Mint_LostLease", (*suite).mintLost},
}

var sealerTokenCases = []suiteCase{
	{"Token_IncreasesAfterUnseal", (*suite).tokensAfterUnseal},
	{"Token_IncreasesAfterAdoption", (*suite).tokensAfterAdoption},
	{"Token_IncreasesAfterOrphanUnseal", (*suite).tokensAfterOrphanUnseal},
	{"Mint_SealedLease", (*suite).mintSealed},
}

func (s *suite) tokenOnlyIfAsked() {
	r := s.request(s.key(), long)
	g := s.acquire(r)
	if (g.Token == 0) != (g.Tokens == 0) {
		s.Fatalf("token %d, but %d tokens", g.Token, g.Tokens)
	}
	s.held(g.Key, g.Owner)
	s.ok("Release without a token", s.release(g.Grant))
	s.free(r.Key)
	r = s.request(r.Key, long)
	r.Token = true
	if g := s.acquire(r); g.Token == 0 || g.Tokens == 0 {
		s.Fatalf("asked for a token, got %+v", g)
	}
}

// How a lease of tokensIncrease comes to a token.
const (
	tokenNone   = 'n' // it has none, unless the backend mints unasked
	tokenAsked  = 'a' // by Acquire
	tokenMinted = 'm' // by Mint
)

// tokensIncrease checks that the tokens of a key increase over leases that end by end.
func (s *suite) tokensIncrease(modes string, ttl, orphan time.Duration, end func(lease)) {
	s.Helper()
	key := s.key()
	var last uint64
	var before string
	for i, mode := range modes {
		r := s.orphanRequest(key, ttl, orphan)
		r.Token, r.Adopt = mode == tokenAsked, before
		g := s.acquire(r)
		if mode == tokenMinted {
			minted, err := s.mint(g.Grant)
			if errors.Is(err, core.ErrLost) && time.Now().After(g.Deadline) {
				mode = tokenNone // the machine was too slow
			} else {
				s.ok("Mint", err)
				g.Grant = minted
			}
		}
		switch {
		case g.Token == 0 && mode != tokenNone:
			s.Fatalf("lease %d (%c) has no token", i, mode)
		case g.Token != 0 && g.Token <= last:
			s.Fatalf("lease %d (%c) has token %d, but an earlier one had %d", i, mode, g.Token, last)
		case g.Token != 0:
			last = g.Token + g.Tokens - 1
		}
		end(g)
		before = g.Owner
	}
}

func (s *suite) tokensAfterRelease() {
	s.tokensIncrease("amnaanammnnaama", long, 0, func(g lease) { s.ok("Release", s.release(g.Grant)) })
}

func (s *suite) tokensAfterUnseal() {
	s.tokensIncrease("amnaanammn", long, 0, func(g lease) {
		sealer := g.Grant
		if sealer.Token != 0 {
			sealer.Token += g.Tokens - 1 // the last local holder
		}
		s.ok("Seal", s.seal(sealer, []byte("v"), long))
		s.unseal(g.Key)
	})
}

func (s *suite) tokensAfterExpiry() { s.tokensIncrease("amnam", short, 0, s.expired) }

func (s *suite) tokensAfterAdoption() { s.tokensIncrease("amnam", short, long, s.expired) }

func (s *suite) tokensAfterOrphanUnseal() {
	s.tokensIncrease("mnam", short, long, func(g lease) {
		s.expired(g)
		s.unseal(g.Key)
	})
}

func (s *suite) mintAgain() {
	r := s.request(s.key(), long)
	g := s.acquire(r)
	first, err := s.mint(g.Grant)
	s.ok("Mint", err)
	if first.Token == 0 || first.Tokens == 0 || first.Key != g.Key || first.Owner != g.Owner || first.Deadline.Before(g.Deadline) {
		s.Fatalf("Mint(%+v) = %+v", g.Grant, first)
	}
	same, err := s.mint(first)
	s.ok("Mint of a grant that has a token", err)
	if same != first {
		s.Fatalf("Mint(%+v) = %+v, want it unchanged", first, same)
	}
	again, err := s.mint(g.Grant)
	s.ok("Mint again, as after a lost reply", err)
	if again.Token != first.Token && again.Token < first.Token+first.Tokens {
		s.Fatalf("Mint again = %+v after %+v", again, first)
	}
	s.held(g.Key, g.Owner)
	s.ok("Release", s.release(again))
	r = s.request(g.Key, long)
	r.Token = true
	if next := s.acquire(r); next.Token < again.Token+again.Tokens {
		s.Fatalf("the next holder has token %d, after %d", next.Token, again.Token+again.Tokens-1)
	}
}

func (s *suite) mintLost() {
	released := s.acquire(s.request(s.key(), long))
	s.ok("Release", s.release(released.Grant))
	s.noMint("after Release", released.Grant)
	s.free(released.Key)

	g := s.acquire(s.request(s.key(), short))
	s.expired(g)
	s.noMint("after the lease", g.Grant)
	s.free(g.Key)
	next := s.acquire(s.request(g.Key, long))
	s.noMint("of a key that is another's", g.Grant)
	s.held(g.Key, next.Owner)
}

func (s *suite) mintSealed() {
	g := s.acquire(s.request(s.key(), long))
	s.ok("Seal", s.seal(g.Grant, nil, long))
	s.noMint("after Seal", g.Grant)
}

// noMint checks that a lease that is over gets no token.
func (s *suite) noMint(when string, g core.Grant) {
	s.Helper()
	if g.Token != 0 {
		return // minted by Acquire, unasked
	}
	_, err := s.mint(g)
	s.want("Mint "+when, err, core.ErrLost)
}

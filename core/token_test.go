package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

func TestToken_OnRequest(t *testing.T) {
	t.Parallel()
	s := memorySpy()
	l := locker(t, s)
	var last uint64
	for i := range 6 { // with and without WithToken, in turns
		var opts []core.AcquireOption
		if i%2 == 0 {
			opts = append(opts, core.WithToken())
		}
		k := acquire(t, l, "k", opts...)
		first := token(t, k)
		if first <= last || token(t, k) != first {
			t.Errorf("token %d after %d", first, last)
		}
		last = first
		ok(t, "Release", k.Release(t.Context()))
		if got := token(t, k); got != first {
			t.Errorf("token %d after Release, want %d", got, first)
		}
	}
	if n := s.count("mint"); n != 3 {
		t.Errorf("%d mints, want one for each lock without WithToken", n)
	}
}

func TestToken_OfALockThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "released")
		ok(t, "Release", k.Release(t.Context()))
		_, err := k.Token(t.Context())
		want(t, "Token after Release", err, core.ErrReleased)
		k = acquire(t, l, "lost", core.WithMaxHold(0))
		time.Sleep(time.Minute)
		_, err = k.Token(t.Context())
		want(t, "Token after the lease ended", err, core.ErrLost)
		k = acquire(t, l, "gone")
		s.on("mint", func(context.Context) error { return core.ErrLost })
		_, err = k.Token(t.Context())
		want(t, "Token of a key that is gone", err, core.ErrLost)
		want(t, "Err", k.Err(), core.ErrLost)
		k = acquire(t, l, "away")
		s.on("mint", func(context.Context) error { return unavailable("away") })
		_, err = k.Token(t.Context())
		want(t, "Token without an answer", err, core.ErrUnavailable)
		ok(t, "Err", k.Err())
	})
}

// A token that arrives after Release would be larger than the next holder's.
func TestToken_AnsweredAfterReleaseIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k")
		s.on("mint", func(context.Context) error { time.Sleep(time.Second); return nil })
		minted := make(chan error, 1)
		go func() {
			_, err := k.Token(context.Background())
			minted <- err
		}()
		synctest.Wait()
		next := acquiring(t, l, core.WithToken())
		ok(t, "Release", k.Release(t.Context())) // waits for the mint
		want(t, "Token", <-minted, core.ErrReleased)
		ok(t, "Release", (<-next).Release(t.Context()))
	})
}

// Each local holder of one lease has its own token, in order, however they ask for them.
func TestToken_IncreasesOverHandOvers(t *testing.T) {
	for name, opts := range map[string][]core.AcquireOption{"WithToken": {core.WithToken()}, "later": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l := locker(t, s)
				k := acquire(t, l, "k", opts...)
				var last uint64
				for i := range 2000 {
					next := acquiring(t, l, opts...)
					if i%3 == 0 || len(opts) > 0 { // some holders never ask
						if got := token(t, k); got <= last {
							t.Fatalf("holder %d: token %d after %d", i, got, last)
						} else {
							last = got
						}
					}
					ok(t, "Release", k.Release(t.Context()))
					k = <-next
				}
				ok(t, "Release", k.Release(t.Context()))
				if n := s.count("acquire"); n > 2000/32 {
					t.Errorf("%d leases for 2000 holders, want hand-overs", n)
				}
			})
		})
	}
}

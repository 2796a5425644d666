package claim_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestUnknown(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, locker func(...core.Option) *core.Locker) {
		l := locker(core.WithTTL(5*time.Second), core.WithInstance("shop-1"))
		c, before := newClaims(l, failOpen), time.Now()
		out, err := c.Begin(t.Context(), claim.Request{Key: "k", Fingerprint: fp("a"), ID: "request-7"})
		if err != nil || out.Claim == nil {
			t.Fatalf("%+v, %v; want a claim", out, err)
		}
		out.Claim.LeaveUnknown()
		out.Claim.LeaveUnknown()
		ok(t, "Free after LeaveUnknown", out.Claim.Free())
		out.Claim.Close()
		want(t, "Complete after LeaveUnknown", out.Claim.Complete(record("x")), claim.ErrOver)
		refused(t, c, "k", fp("a"), claim.ErrUnknown) // before the lease would have ended

		_, err = ask(t.Context(), newClaims(locker(core.WithInstance("shop-2"))), "k", fp("a"))
		var unknown *claim.UnknownError
		if !errors.As(err, &unknown) || !errors.Is(err, core.ErrOrphaned) || unknown.Key != "claim:k" || !strings.Contains(err.Error(), "shop-1") {
			t.Fatalf("%v", err)
		}
		if r := unknown.Run; r.Instance != "shop-1" || r.RequestID != "request-7" || r.Begun.Before(before.Add(-time.Second)) || r.Begun.After(unknown.Since) {
			t.Errorf("%+v, since %v", r, unknown.Since)
		}
		refused(t, newClaims(locker(), recovers), "k", fp("b"), claim.ErrMismatch)
		refused(t, newClaims(locker()), "k", fp("b"), claim.ErrMismatch)
		ok(t, "Unseal", l.Unseal(t.Context(), "claim:k"))
		free(t, begin(t, newClaims(locker()), "k", fp("a")))
	})
}

// Of many that adopt at once exactly one gets the claim.
func TestAdopt_OneOfMany(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, locker func(...core.Option) *core.Locker) {
		first := locker(core.WithTTL(5 * time.Second))
		leave(t, newClaims(first), "k", fp("a"))
		becomes(t, first, "k", core.Orphaned)
		var all sync.WaitGroup
		var claims, refusals atomic.Int64
		done := make(chan struct{})
		for range 4 {
			c := newClaims(locker(), recovers)
			for range 4 {
				all.Go(func() {
					out, err := ask(t.Context(), c, "k", fp("a"))
					for errors.Is(err, claim.ErrInFlight) && claims.Load() == 0 { // the votes of a quorum may be split
						time.Sleep(5 * time.Millisecond)
						out, err = ask(t.Context(), c, "k", fp("a"))
					}
					switch {
					case err == nil && out.Claim != nil:
						claims.Add(1)
						if out.Claim.Adopted() == nil {
							t.Error("the claim was not adopted")
						}
						<-done
						if err := out.Claim.Complete(record("told")); err != nil {
							t.Error(err)
						}
						out.Claim.Close()
						return
					case errors.Is(err, claim.ErrInFlight):
					default:
						t.Errorf("%+v, %v", out, err)
					}
					if refusals.Add(1) == 15 {
						close(done)
					}
				})
			}
		}
		all.Wait()
		if claims.Load() != 1 {
			t.Errorf("%d claims", claims.Load())
		}
		replay(t, newClaims(first), "k", fp("a"), "told")
	})
}

func TestAdopt_AdopterDies(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, locker func(...core.Option) *core.Locker) {
		l := locker(core.WithTTL(5 * time.Second))
		leave(t, newClaims(l), "k", fp("a"))
		becomes(t, l, "k", core.Orphaned)
		leave(t, newClaims(locker(core.WithTTL(5*time.Second)), recovers), "k", fp("a"))
		becomes(t, l, "k", core.Orphaned)
		refused(t, newClaims(locker()), "k", fp("a"), claim.ErrUnknown)
		k := begin(t, newClaims(locker(), recovers), "k", fp("a"))
		if k.Adopted() == nil {
			t.Error("the claim was not adopted")
		}
		complete(t, k, "again")
		replay(t, newClaims(l), "k", fp("a"), "again")
	})
}

// A run with RunAgain leaves a mark. The payload stays bound to the key, and a retry with the same
// one runs, at once or after a crash. A version of the service without RunAgain does not run it.
func TestRunAgain_KeepsPayload(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*core.Locker, *claim.Claim){
		"failed": func(_ *core.Locker, k *claim.Claim) { k.Close() },
		"crash": func(l *core.Locker, _ *claim.Claim) {
			_ = l.Close() // nothing renews the lease
			time.Sleep(time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := backendtest.Memory()
				first, l := newLocker(t, b), newLocker(t, b)
				again := newClaims(l, runAgain)
				end(first, begin(t, newClaims(first, runAgain), "k", fp("a")))
				refused(t, again, "k", fp("b"), claim.ErrMismatch)
				refused(t, newClaims(l), "k", fp("a"), claim.ErrUnknown)
				for range 2 {
					k := begin(t, again, "k", fp("a"))
					if k.Adopted() == nil {
						t.Error("the run is not told from a first one")
					}
					k.Close()
				}
				refused(t, again, "k", fp("b"), claim.ErrMismatch)
				complete(t, begin(t, again, "k", fp("a")), "done")
				replay(t, again, "k", fp("a"), "done")
				refused(t, again, "k", fp("b"), claim.ErrMismatch)
			})
		})
	}
}

// A handler that has answered with a time-out may run on. Its retry must not ask what it did before
// the lease has ended.
func TestLeaveUnknown_HandlerGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClaims(memoryLocker(t), recovers)
		k := begin(t, c, "k", fp("a"))
		k.End(k.Settle(claim.Facts{Verdict: claim.Unknown}), nil)
		k.Close()
		refused(t, c, "k", fp("a"), claim.ErrInFlight)
		time.Sleep(time.Minute)
		free(t, begin(t, c, "k", fp("a")))
	})
}

func TestUnknown_ForgottenAfterRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClaims(memoryLocker(t), keep(time.Hour))
		leave(t, c, "k", fp("a"))
		time.Sleep(time.Hour - time.Second)
		refused(t, c, "k", fp("a"), claim.ErrUnknown)
		time.Sleep(time.Minute)
		free(t, begin(t, c, "k", fp("b")))
	})
}

// A claim whose lease ended seals over its own orphan, unless somebody adopted it.
func TestComplete_AfterLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := memoryLocker(t, core.WithTTL(time.Second))
		c := newClaims(l, maxRun(time.Second), recovers)
		k := begin(t, c, "own", fp("a"))
		adopted := begin(t, c, "adopted", fp("a"))
		freed := begin(t, c, "freed", fp("a"))
		time.Sleep(time.Hour) // far beyond all that renews them
		want(t, "the context", context.Cause(k.Context()), claim.ErrMaxRun)
		refused(t, newClaims(l), "own", fp("a"), claim.ErrUnknown)
		ok(t, "Complete over the own orphan", k.Complete(record("late")))
		replay(t, c, "own", fp("a"), "late")

		next := begin(t, c, "adopted", fp("a"))
		want(t, "Complete of an adopted claim", adopted.Complete(record("late")), core.ErrLost)
		complete(t, next, "next")
		replay(t, c, "adopted", fp("a"), "next")

		want(t, "Free of a lost claim", freed.Free(), core.ErrLost)
		synctest.Wait()
		if got := status(t, l, "freed"); got != core.Free {
			t.Errorf("the key is %v", got)
		}
	})
}

// A request that waits for one whose process dies gets the unknown outcome, or adopts it.
func TestWait_OverOrphan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := memoryLocker(t)
		for name, tc := range map[string]struct {
			changes []change
			want    error
		}{
			"refused": {[]change{waiting(time.Minute)}, claim.ErrUnknown},
			"adopted": {[]change{waiting(time.Minute), recovers}, nil},
		} {
			k := begin(t, newClaims(b), name, fp("a"))
			got := make(chan error)
			go func() {
				out, err := ask(t.Context(), newClaims(b, tc.changes...), name, fp("a"))
				if err == nil {
					if out.Claim.Adopted() == nil {
						t.Error("the claim was not adopted")
					}
					out.Claim.Close()
				}
				got <- err
			}()
			synctest.Wait()
			k.LeaveUnknown()
			if err := <-got; !errors.Is(err, tc.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A request with Wait that loses the race for an orphan waits for the answer of the one that won.
func TestWait_ForAdopter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := memoryLocker(t)
		leave(t, newClaims(l), "k", fp("a"))
		time.Sleep(time.Minute)
		c := newClaims(l, recovers, waiting(time.Minute))
		answers := make(chan string, 8)
		for range cap(answers) {
			go func() {
				out, err := ask(t.Context(), c, "k", fp("a"))
				switch {
				case err != nil:
					answers <- err.Error()
				case out.Claim != nil:
					time.Sleep(time.Second)
					complete(t, out.Claim, "told")
					answers <- "claim"
				default:
					answers <- string(out.Replay.Body)
				}
			}()
		}
		got := map[string]int{}
		for range cap(answers) {
			got[<-answers]++
		}
		if got["claim"] != 1 || got["told"] != 7 {
			t.Errorf("%v", got)
		}
	})
}

func TestWait_MismatchAtOnceAndAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClaims(memoryLocker(t), waiting(time.Minute))
		k, began := begin(t, c, "k", fp("a")), time.Now()
		refused(t, c, "k", fp("b"), claim.ErrMismatch)
		if time.Since(began) > 0 {
			t.Error("a mismatch waited")
		}
		go func() {
			time.Sleep(time.Second)
			complete(t, k, "done")
		}()
		replay(t, c, "k", fp("a"), "done")
		k = begin(t, c, "long", fp("a"))
		refused(t, c, "long", fp("a"), claim.ErrInFlight)
		if waited := time.Since(began); waited < 61*time.Second || waited > 62*time.Second {
			t.Errorf("waited %v", waited)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := ask(short, c, "long", fp("a"))
		want(t, "a wait whose context ended", err, claim.ErrInFlight)
		free(t, k)
	})
}

// A version of the service without RunAgain charged and died. The next version has RunAgain, because its
// own handler may be repeated. That says nothing about the handler before it.
func TestRunAgain_RunOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := memoryLocker(t)
		charges := 0
		earlier := begin(t, newClaims(l), "k", fp("a"))
		charges++ // without Once, Step or DeriveKey
		earlier.LeaveUnknown()
		earlier.Close() // its pod is replaced
		time.Sleep(time.Minute)
		out, err := ask(t.Context(), newClaims(l, runAgain), "k", fp("a"))
		if out.Claim != nil {
			charges++ // in Once, which has no row of the first charge
			complete(t, out.Claim, "paid")
		}
		if charges != 1 {
			t.Errorf("%d charges for one key", charges)
		}
		want(t, "the retry", err, claim.ErrUnknown)
	})
}

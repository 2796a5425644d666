package core_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

var errJob = errors.New("the job failed")

func nothing(context.Context) error { return nil }

// Of many calls on several instances one runs; the others wait for it. After the retention one runs
// again.
func TestDoOnce_OneOfManyRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		instances := []*core.Locker{
			locker(t, b, core.WithInstance("i0")), locker(t, b, core.WithInstance("i1")), locker(t, b, core.WithInstance("i2")),
		}
		for range 2 {
			var mu sync.Mutex
			runs, ran := 0, 0
			start := time.Now()
			var all sync.WaitGroup
			for i := range 30 {
				all.Go(func() {
					did, err := instances[i%3].DoOnce(t.Context(), "job", time.Hour, func(context.Context) error {
						mu.Lock()
						runs++
						mu.Unlock()
						time.Sleep(20 * time.Second) // longer than a lease
						return nil
					})
					mu.Lock()
					defer mu.Unlock()
					if did {
						ran++
					}
					if err != nil || time.Since(start) < 20*time.Second {
						t.Errorf("DoOnce: %v after %v", err, time.Since(start))
					}
				})
			}
			all.Wait()
			if runs != 1 || ran != 1 {
				t.Errorf("%d runs, and %d calls say that they ran", runs, ran)
			}
			st, err := instances[0].Inspect(t.Context(), "job")
			if err != nil || st.Status != core.Sealed || !strings.HasPrefix(string(st.Value), "i") {
				t.Errorf("Inspect: %+v, %v", st, err)
			}
			time.Sleep(time.Hour)
		}
	})
}

// A call that does not wait learns that the job runs. Bad calls run nothing.
func TestDoOnce_RefusedCalls(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	never := func(context.Context) error { t.Error("fn ran"); return nil }
	k := acquire(t, l, "job")
	ran, err := l.DoOnce(t.Context(), "job", time.Hour, never, core.WithWait(0))
	if want(t, "DoOnce", err, core.ErrTaken); ran {
		t.Error("it ran")
	}
	_, err = l.DoOnce(core.WithLock(t.Context(), k), "job", time.Hour, never)
	if err == nil || !strings.Contains(err.Error(), `"job"`) {
		t.Errorf("under a lock on the key: %v", err)
	}
	ok(t, "Release", k.Release(t.Context()))
	for _, retention := range []time.Duration{0, -1, 11 * 365 * 24 * time.Hour} {
		if _, err = l.DoOnce(t.Context(), "job", retention, never); err == nil || !strings.Contains(err.Error(), "retention") {
			t.Errorf("retention %v: %v", retention, err)
		}
	}
	if _, err = l.DoOnce(t.Context(), "", time.Hour, never); !errors.Is(err, core.ErrInvalidKey) {
		t.Errorf("empty key: %v", err)
	}
	if status(t, l, "job") != core.Free {
		t.Error("the key is not free")
	}
}

// A function that fails, panics or ends its goroutine did not run: another one may.
func TestDoOnce_FailureLetsAnotherRun(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]func(context.Context) error{
		"error":  func(context.Context) error { return errJob },
		"panic":  func(context.Context) error { panic(errJob) },
		"sealed": func(context.Context) error { return &core.SealedError{Key: "another"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := backendtest.Memory()
				l, other := locker(t, b), locker(t, b)
				waiters := make(chan bool, 2)
				began := make(chan bool)
				go func() {
					defer func() { _ = recover() }()
					ran, err := l.DoOnce(context.Background(), "job", time.Hour, func(ctx context.Context) error {
						close(began)
						time.Sleep(time.Second)
						return fn(ctx)
					}, core.WithOrphan(time.Hour))
					if !ran || err == nil {
						t.Errorf("DoOnce: %v, %v", ran, err)
					}
				}()
				<-began
				for _, l := range []*core.Locker{l, other} {
					go func() {
						ran, err := l.DoOnce(context.Background(), "job", time.Hour, nothing)
						if err != nil {
							t.Errorf("DoOnce of a waiter: %v", err)
						}
						waiters <- ran
					}()
				}
				if first, second := <-waiters, <-waiters; first == second {
					t.Errorf("two waiters ran: %v and %v", first, second)
				}
			})
		})
	}
}

// A lock that is lost while the function runs is an error, and the key is left to others.
func TestDoOnce_LockLost(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]error{"fn succeeds": nil, "fn fails": errJob} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				s.on("extend", away)
				l, other := locker(t, s), locker(t, s.Sealer)
				var next *core.Lock
				ran, err := l.DoOnce(t.Context(), "job", time.Hour, func(ctx context.Context) error {
					<-ctx.Done()
					want(t, "the cause", context.Cause(ctx), core.ErrLost)
					next = acquire(t, other, "job")
					return failed
				})
				if want(t, "DoOnce", err, core.ErrLost); !ran || failed != nil && !errors.Is(err, failed) {
					t.Errorf("DoOnce: %v, %v", ran, err)
				}
				if s.count("seal") != 0 || status(t, l, "job") != core.Held {
					t.Errorf("%d seals; the key is %v", s.count("seal"), status(t, l, "job"))
				}
				ok(t, "Release", next.Release(t.Context()))
			})
		})
	}
}

// With an orphan the key stays the runner's after its lease ended, unless somebody adopts it.
func TestDoOnce_Orphan(t *testing.T) {
	t.Parallel()
	for _, adopted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := memorySpy()
			s.on("extend", away)
			l, other := locker(t, s), locker(t, s.Sealer)
			ran, err := l.DoOnce(t.Context(), "job", time.Hour, func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Minute)
				ran, err := other.DoOnce(t.Context(), "job", time.Hour, nothing)
				orphan, found := errors.AsType[*core.OrphanedError](err)
				if ran || !found {
					t.Fatalf("DoOnce on an orphan: %v, %v", ran, err)
				}
				if adopted {
					adopt(t, other, orphan, core.WithOrphan(time.Hour))
				}
				return nil
			}, core.WithOrphan(24*time.Hour))
			if !ran || adopted != errors.Is(err, core.ErrLost) || !adopted && err != nil {
				t.Errorf("adopted %v: %v, %v", adopted, ran, err)
			}
			if got := status(t, other, "job"); adopted != (got == core.Held) || adopted == (got == core.Sealed) {
				t.Errorf("adopted %v: the key is %v", adopted, got)
			}
		})
	}
}

// A seal is tried again over an outage. If it fails for good, the error says what is known.
func TestDoOnce_SealFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outage time.Duration
		fail   int // seals that fail
		ends   bool
		orphan time.Duration
		err    error
		later  core.Status
	}{
		"short outage":   {10 * time.Second, 5, false, 0, nil, core.Sealed},
		"long outage":    {10 * time.Second, 1000, false, 0, core.ErrUnavailable, core.Free},
		"no retry":       {0, 1, false, 0, core.ErrUnavailable, core.Free},
		"orphan":         {0, 1, false, time.Hour, core.ErrUnavailable, core.Orphaned},
		"context ended":  {10 * time.Second, 0, true, 0, nil, core.Sealed},
		"both at a time": {10 * time.Second, 1000, true, 0, context.Canceled, core.Free},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l, other := locker(t, s), locker(t, s.Sealer)
				s.on("seal", func(context.Context) error {
					if s.count("seal") <= c.fail {
						return unavailable("k")
					}
					return nil
				})
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				ran, err := l.DoOnce(ctx, "job", time.Hour, func(context.Context) error {
					if c.ends {
						cancel()
					}
					return nil
				}, core.WithOutageWait(c.outage), core.WithOrphan(c.orphan))
				if !ran || !errors.Is(err, c.err) {
					t.Fatalf("DoOnce: %v, %v", ran, err)
				}
				if c.err != nil && (!strings.Contains(err.Error(), "fn ran") || !strings.Contains(err.Error(), `"job"`)) {
					t.Errorf("%v", err)
				}
				if c.ends && errors.Is(err, core.ErrUnavailable) {
					t.Errorf("%v matches ErrUnavailable", err)
				}
				if _, again := other.DoOnce(context.Background(), "job", time.Hour, nothing, core.WithWait(0)); c.err != nil && !errors.Is(again, core.ErrTaken) {
					t.Errorf("the key is not kept until the lease ends: %v", again)
				}
				time.Sleep(15 * time.Second)
				if got := status(t, other, "job"); got != c.later {
					t.Errorf("the key is %v, want %v", got, c.later)
				}
			})
		})
	}
}

// The Locker is closed while the job runs: the job is still sealed.
func TestDoOnce_Closed(t *testing.T) {
	t.Parallel()
	b := backendtest.Memory()
	l, other := locker(t, b), locker(t, b)
	ran, err := l.DoOnce(t.Context(), "job", time.Hour, func(context.Context) error { return l.Close() })
	if !ran || err != nil || status(t, other, "job") != core.Sealed {
		t.Errorf("DoOnce: %v, %v; the key is %v", ran, err, status(t, other, "job"))
	}
}

// The seal is tried for as long as WithOutageWait says, even after the lease ended.
func TestDoOnce_SealAfterTheLease(t *testing.T) {
	t.Parallel()
	for _, orphan := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := memorySpy()
			l := locker(t, s)
			var since time.Time
			down := func(context.Context) error {
				if time.Since(since) < 5*time.Second {
					return unavailable("k")
				}
				return nil
			}
			ran, err := l.DoOnce(t.Context(), "job", time.Hour, func(context.Context) error {
				since = time.Now()
				s.on("seal", down)
				s.on("extend", down)
				return nil
			}, core.WithTTL(time.Second), core.WithOrphan(orphan))
			if orphan == 0 {
				want(t, "DoOnce", err, core.ErrLost) // definite: nothing is sealed
			} else if err != nil || status(t, l, "job") != core.Sealed {
				t.Errorf("DoOnce: %v; the key is %v", err, status(t, l, "job"))
			}
			if !ran {
				t.Error("it did not run")
			}
		})
	}
}

package claim_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil/backendtest"
)

// outage is a backend that does not answer for a while: each call ends with its context or after five
// seconds.
type outage struct {
	core.Sealer
	until time.Time
}

// Open implements core.Opener.
func (b *outage) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b *outage) hang(ctx context.Context, key string) error {
	if !time.Now().Before(b.until) {
		return nil
	}
	select {
	case <-ctx.Done():
		return &core.UnavailableError{Key: key, Nodes: []error{ctx.Err()}}
	case <-time.After(5 * time.Second):
		return &core.UnavailableError{Key: key, Nodes: []error{errors.New("no answer")}}
	}
}

func (b *outage) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	if err := b.hang(ctx, r.Key); err != nil {
		return core.Grant{}, err
	}
	return b.Sealer.Acquire(ctx, r)
}

func (b *outage) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	if err := b.hang(ctx, g.Key); err != nil {
		return g, err
	}
	return b.Sealer.Extend(ctx, g, ttl)
}

func (b *outage) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	if err := b.hang(ctx, g.Key); err != nil {
		return core.Waiters{Others: -1}, err
	}
	return b.Sealer.Release(ctx, g)
}

func (b *outage) Inspect(ctx context.Context, key string) (core.State, error) {
	if err := b.hang(ctx, key); err != nil {
		return core.State{}, err
	}
	return b.Sealer.Inspect(ctx, key)
}

func (b *outage) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	if err := b.hang(ctx, g.Key); err != nil {
		return err
	}
	return b.Sealer.Seal(ctx, g, value, retention)
}

// during runs fn with Claims on a backend of which one call takes longer than a claim waits.
func during(t *testing.T, fn func(t *testing.T, b *outage, c *claim.Claims), changes ...change) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &outage{Sealer: backendtest.Memory()}
		l := newLocker(t, b)
		fn(t, b, newClaims(l, changes...))
		time.Sleep(time.Minute) // clean-ups end
	})
}

// unavailable checks that an error blames the backend, and no context: the caller's has not ended.
func unavailable(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, core.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Errorf("%s: %v", what, err)
	}
}

// shutdown reports when Shutdown has returned.
func shutdown(ctx context.Context) <-chan error {
	over := make(chan error, 1)
	go func() { over <- claim.Shutdown(ctx) }()
	return over
}

// The time that Complete gives the backend is its own. After that sealing goes on, also past the lease,
// and Shutdown waits for it.
func TestComplete_RecordsLate(t *testing.T) {
	for name, out := range map[string]time.Duration{"within the lease": 3 * time.Second, "past the lease": time.Hour} {
		t.Run(name, func(t *testing.T) {
			during(t, func(t *testing.T, b *outage, c *claim.Claims) {
				k := begin(t, c, "k", fp("a"))
				b.until = time.Now().Add(out)
				start := time.Now()
				unavailable(t, "Complete", k.Complete(record("done")))
				if took := time.Since(start); took != 2*time.Second {
					t.Errorf("Complete took %v", took)
				}
				k.Close()
				over := shutdown(context.Background())
				synctest.Wait()
				select {
				case err := <-over:
					t.Fatalf("Shutdown returned before the answer was recorded: %v", err)
				default:
				}
				ok(t, "Shutdown", <-over)
				if took := time.Since(start); took < out || took > out+10*time.Second {
					t.Errorf("Shutdown took %v", took)
				}
				replay(t, c, "k", fp("a"), "done")
			})
		})
	}
}

// With RunAgain a retry may run while the backend is down for the first process. Then the late
// answer is not recorded. Otherwise it is.
func TestComplete_LateWithRunAgain(t *testing.T) {
	during(t, func(t *testing.T, b *outage, c *claim.Claims) {
		k := begin(t, c, "k", fp("a"))
		b.until = time.Now().Add(time.Hour)
		unavailable(t, "Complete", k.Complete(record("done")))
		k.Close()
		ok(t, "Shutdown", <-shutdown(context.Background()))
		replay(t, c, "k", fp("a"), "done")
	}, runAgain)
	during(t, func(t *testing.T, b *outage, c *claim.Claims) {
		k := begin(t, c, "k", fp("a"))
		b.until = time.Now().Add(time.Hour)
		unavailable(t, "Complete", k.Complete(record("done")))
		k.Close()
		elsewhere := newClaims(newLocker(t, b.Sealer.(core.Opener)), runAgain)
		time.Sleep(time.Minute)
		next := begin(t, elsewhere, "k", fp("a"))
		nothingLate()
		complete(t, next, "next")
		replay(t, c, "k", fp("a"), "next")
	}, runAgain)
}

func TestFree_FreesLate(t *testing.T) {
	for name, out := range map[string]time.Duration{"within the lease": 3 * time.Second, "past the lease": time.Hour} {
		t.Run(name, func(t *testing.T) {
			during(t, func(t *testing.T, b *outage, c *claim.Claims) {
				k := begin(t, c, "k", fp("a"))
				b.until = time.Now().Add(out)
				start := time.Now()
				unavailable(t, "Free", k.Free())
				if took := time.Since(start); took != time.Second {
					t.Errorf("Free took %v", took)
				}
				k.Close()
				ok(t, "Shutdown", <-shutdown(context.Background()))
				free(t, begin(t, c, "k", fp("b")))
			})
		})
	}
}

// A key that another has by now is not freed late.
func TestFree_LateSparesOthers(t *testing.T) {
	during(t, func(t *testing.T, b *outage, c *claim.Claims) {
		k := begin(t, c, "k", fp("a"))
		b.until = time.Now().Add(time.Minute)
		unavailable(t, "Free", k.Free())
		k.Close()
		elsewhere := newClaims(newLocker(t, b.Sealer.(core.Opener)), recovers)
		time.Sleep(30 * time.Second)
		next := begin(t, elsewhere, "k", fp("a"))
		nothingLate()
		complete(t, next, "next")
		replay(t, c, "k", fp("a"), "next")
	})
}

// nothingLate waits until nothing goes on in the background.
func nothingLate() {
	for {
		if _, _, late := claim.Running(); late == 0 {
			return
		}
		time.Sleep(time.Second)
	}
}

func TestShutdown_EndsHandlersAndSeals(t *testing.T) {
	during(t, func(t *testing.T, b *outage, c *claim.Claims) {
		ok(t, "Shutdown of nothing", claim.Shutdown(t.Context()))
		k, handler := begin(t, c, "k", fp("a")), begin(t, c, "handler", fp("a"))
		b.until = time.Now().Add(time.Hour)
		unavailable(t, "Complete", k.Complete(record("done")))
		k.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := claim.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 handlers were still running and 1 answers") {
			t.Errorf("Shutdown: %v", err)
		}
		if cause := context.Cause(handler.Context()); !errors.Is(cause, context.DeadlineExceeded) || !strings.Contains(cause.Error(), "shutdown") {
			t.Errorf("the handler's context: %v", cause)
		}
		handler.Close()
		time.Sleep(2 * time.Hour)
		ok(t, "Shutdown", claim.Shutdown(t.Context()))
		refused(t, c, "k", fp("a"), claim.ErrUnknown)
	})
}

func TestShutdown_WaitsForHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClaims(memoryLocker(t))
		a, b := begin(t, c, "a", fp("a")), begin(t, c, "b", fp("a"))
		one, two := shutdown(t.Context()), shutdown(t.Context())
		for _, k := range []*claim.Claim{a, b} {
			synctest.Wait()
			if len(one)+len(two) > 0 {
				t.Fatal("Shutdown did not wait")
			}
			complete(t, k, "done")
		}
		ok(t, "Shutdown", <-one)
		ok(t, "Shutdown", <-two)
	})
}

// lateTimer is a context whose own timer is late: the backend notices its deadline first.
type lateTimer struct {
	context.Context
	end time.Time
}

func (c lateTimer) Deadline() (time.Time, bool) { return c.end, true }

// A request whose caller has gone does not run unprotected: it may run beside the one that has the key.
func TestFailOpen_NotAfterContextEnded(t *testing.T) {
	during(t, func(t *testing.T, b *outage, c *claim.Claims) {
		b.until = time.Now().Add(time.Hour)
		if out, err := ask(t.Context(), c, "k", fp("a")); err != nil {
			t.Errorf("Begin of a patient caller: %v", err)
		} else {
			unavailable(t, "Unprotected", out.Unprotected)
		}
		for what, end := range map[string]func(context.Context, context.CancelFunc) context.Context{
			"a deadline that passes": func(ctx context.Context, cancel context.CancelFunc) context.Context {
				ctx, cancelToo := context.WithTimeout(ctx, time.Second)
				context.AfterFunc(ctx, cancelToo)
				return ctx
			},
			"a deadline whose timer is late": func(ctx context.Context, _ context.CancelFunc) context.Context {
				return lateTimer{ctx, time.Now().Add(time.Second)}
			},
			"hanging up": func(ctx context.Context, cancel context.CancelFunc) context.Context {
				time.AfterFunc(time.Second, cancel)
				return ctx
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			out, err := ask(end(ctx, cancel), c, "k", fp("a"))
			cancel()
			if out != (claim.Outcome{}) || errors.Is(err, core.ErrUnavailable) ||
				!errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %+v, %v", what, out, err)
			}
		}
		b.until = time.Time{}
	}, failOpen, waiting(time.Minute))
}

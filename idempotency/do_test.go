package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

type receipt struct {
	ID     string
	Cents  int64
	At     time.Time
	Lines  []string
	Secret string `json:"-"`
}

// doer calls Do with the options that its tests have in common.
type doer struct {
	*core.Locker
	key  string
	runs int
}

func newDoer(t testing.TB, b core.Opener) *doer {
	return &doer{Locker: check.Locker(t, b), key: "charge:42"}
}

func (d *doer) with(ctx context.Context, fn func(context.Context) (receipt, error), opts ...idempotency.DoOption) (receipt, error) {
	return idempotency.Do(ctx, d.Locker, d.key, func(ctx context.Context) (receipt, error) {
		d.runs++
		return fn(ctx)
	}, append([]idempotency.DoOption{idempotency.Retain(time.Hour)}, opts...)...)
}

// do calls Do with a function that returns this.
func (d *doer) do(t testing.TB, r receipt, err error, opts ...idempotency.DoOption) (receipt, error) {
	return d.with(t.Context(), func(context.Context) (receipt, error) { return r, err }, opts...)
}

func (d *doer) ran(t testing.TB, want int) {
	t.Helper()
	if d.runs != want {
		t.Errorf("the function ran %d times, want %d", d.runs, want)
	}
}

// Later calls, in other processes too, get the result of the first, and the first gets what they get.
func TestDo_Once(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		one, other := newDoer(t, b), newDoer(t, b)
		at := time.Now() // with a reading of the monotonic clock, which no JSON has
		first, err := one.do(t, receipt{ID: "c1", Cents: 1<<62 + 1, At: at, Lines: []string{}, Secret: "s"}, nil)
		check.OK(t, "the first call", err)
		if first.Secret != "" || first.Cents != 1<<62+1 || !first.At.Equal(at) {
			t.Errorf("the first call got %+v", first)
		}
		for _, d := range []*doer{one, other} {
			got, err := d.do(t, receipt{ID: "c2"}, nil)
			check.OK(t, "a later call", err)
			if !reflect.DeepEqual(got, first) {
				t.Errorf("a later call got %#v, the first %#v", got, first)
			}
		}
		one.ran(t, 1)
		other.ran(t, 0)
		time.Sleep(time.Hour) // the retention
		got, err := other.do(t, receipt{ID: "c3"}, nil)
		if err != nil || got.ID != "c3" {
			t.Errorf("after the retention: %+v, %v", got, err)
		}
	})
}

func TestDo_InFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		one, other := newDoer(t, b), newDoer(t, b)
		const runs = 3 * time.Second
		var all sync.WaitGroup
		all.Go(func() {
			_, err := one.with(t.Context(), func(context.Context) (receipt, error) {
				time.Sleep(runs)
				return receipt{ID: "c1"}, nil
			})
			check.OK(t, "the first call", err)
		})
		synctest.Wait()
		_, err := other.do(t, receipt{}, nil)
		check.Want(t, "at once", err, idempotency.ErrInFlight)
		_, err = other.do(t, receipt{}, nil, idempotency.Wait(runs/2))
		check.Want(t, "after a wait", err, idempotency.ErrInFlight)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = other.with(ctx, nil, idempotency.Wait(time.Minute))
		check.Want(t, "a wait that its context ends", err, idempotency.ErrInFlight)
		_, err = other.do(t, receipt{}, nil, idempotency.Payload([]byte("other")), idempotency.Wait(time.Minute))
		check.Want(t, "another payload", err, idempotency.ErrMismatch)
		got, err := other.do(t, receipt{}, nil, idempotency.Wait(time.Minute))
		if err != nil || got.ID != "c1" {
			t.Errorf("after the wait: %+v, %v", got, err)
		}
		all.Wait()
		other.ran(t, 0)
	})
}

func TestDo_Mismatch(t *testing.T) {
	d := newDoer(t, backendtest.Memory())
	for _, c := range []struct {
		payload string
		want    error
	}{{"700", nil}, {"700", nil}, {"900", idempotency.ErrMismatch}, {"", idempotency.ErrMismatch}} {
		if _, err := d.do(t, receipt{}, nil, idempotency.Payload([]byte(c.payload))); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("payload %q: %v, want %v", c.payload, err, c.want)
		}
	}
	d.ran(t, 1)
}

// An error leaves the outcome unknown, says so at once, and stays visible.
func TestDo_Fails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoer(t, backendtest.Memory())
		timeout := errors.New("the provider timed out")
		_, err := d.do(t, receipt{ID: "half"}, timeout)
		check.Want(t, "the first call", err, idempotency.ErrUnknown)
		check.Want(t, "the first call", err, timeout)
		time.Sleep(time.Minute)
		got, err := d.do(t, receipt{}, nil)
		check.Want(t, "a later call", err, idempotency.ErrUnknown)
		unknown, ok := errors.AsType[*idempotency.UnknownError](err)
		if !ok || got.ID != "" || unknown.Run.Begun.IsZero() || unknown.Run.Instance == "" || unknown.Run.Ended.Before(unknown.Run.Begun) ||
			!strings.HasSuffix(unknown.Key, "charge:42") {
			t.Errorf("a later call got %+v, %#v", got, err)
		}
		d.ran(t, 1)
	})
}

func TestDo_NothingDone(t *testing.T) {
	d := newDoer(t, backendtest.Memory())
	_, err := d.do(t, receipt{}, fmt.Errorf("the provider is closed: %w", idempotency.ErrNothingDone))
	check.Want(t, "ErrNothingDone", err, idempotency.ErrNothingDone)
	if errors.Is(err, idempotency.ErrUnknown) {
		t.Errorf("%v matches ErrUnknown", err)
	}
	_, err = d.with(t.Context(), func(ctx context.Context) (receipt, error) {
		idempotency.NothingDone(ctx)
		return receipt{}, nil
	})
	check.Want(t, "NothingDone", err, idempotency.ErrNothingDone)
	_, err = d.with(t.Context(), func(ctx context.Context) (receipt, error) {
		idempotency.NothingDone(ctx)
		return receipt{}, errors.New("the provider is closed")
	})
	if err == nil || errors.Is(err, idempotency.ErrUnknown) {
		t.Errorf("NothingDone and an error: %v", err)
	}
	_, err = d.do(t, receipt{}, nil)
	check.OK(t, "the next call", err)
	d.ran(t, 4)
}

func TestDo_RunAgain(t *testing.T) {
	d := newDoer(t, backendtest.Memory())
	busy := errors.New("busy")
	_, err := d.do(t, receipt{}, busy, idempotency.RunAgain())
	if !errors.Is(err, busy) || errors.Is(err, idempotency.ErrUnknown) {
		t.Errorf("the first call: %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = d.with(t.Context(), func(context.Context) (receipt, error) { panic("again") }, idempotency.RunAgain())
	}()
	_, err = d.with(t.Context(), func(ctx context.Context) (receipt, error) {
		r := httptest.NewRequestWithContext(ctx, "POST", "/", nil)
		idempotency.Fail(httptest.NewRecorder(), r, core.ErrLost)
		return receipt{}, nil
	}, idempotency.RunAgain())
	if !errors.Is(err, idempotency.ErrUnknown) || errors.Is(err, idempotency.ErrNothingDone) {
		t.Errorf("a part of the function has an unknown outcome: %v", err)
	}
	got, err := d.do(t, receipt{ID: "c1"}, nil, idempotency.RunAgain())
	if err != nil || got.ID != "c1" {
		t.Errorf("the last call: %+v, %v", got, err)
	}
	d.ran(t, 4)
}

// A panic goes on, and a message that makes one never runs twice.
func TestDo_Panics(t *testing.T) {
	for name, ends := range map[string]func(){"panic": func() { panic("poison") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDoer(t, backendtest.Memory())
				var caught any
				var all sync.WaitGroup
				all.Go(func() {
					defer func() { caught = recover() }()
					_, _ = d.with(t.Context(), func(context.Context) (receipt, error) { ends(); return receipt{}, nil })
				})
				all.Wait()
				if name == "panic" && caught != "poison" {
					t.Errorf("recovered %v", caught)
				}
				time.Sleep(time.Minute)
				_, err := d.do(t, receipt{}, nil)
				check.Want(t, "a later call", err, idempotency.ErrUnknown)
				d.ran(t, 1)
			})
		})
	}
}

// A call of itself would wait for itself.
func TestDo_Nested(t *testing.T) {
	d := newDoer(t, backendtest.Memory())
	got, err := d.with(t.Context(), func(ctx context.Context) (receipt, error) {
		for _, opt := range []idempotency.DoOption{nil, idempotency.Wait(time.Hour)} {
			if _, err := d.with(ctx, nil, opt); err == nil || !strings.Contains(err.Error(), "inside itself") {
				t.Errorf("the same key: %v", err)
			}
		}
		inner := doer{Locker: d.Locker, key: "mail:42"}
		_, err := inner.with(ctx, func(ctx context.Context) (receipt, error) {
			if _, err := d.with(ctx, nil); err == nil || !strings.Contains(err.Error(), "inside itself") {
				t.Errorf("the outer key: %v", err)
			}
			idempotency.NothingDone(ctx) // is about the inner one
			return receipt{}, nil
		})
		check.Want(t, "the inner call", err, idempotency.ErrNothingDone)
		return receipt{ID: "c1"}, nil
	})
	if err != nil || got.ID != "c1" {
		t.Errorf("the outer call: %+v, %v", got, err)
	}
	d.ran(t, 1)
}

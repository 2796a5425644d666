package idempotency_test

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
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// The caller's cancellation does not cut a run in half. Its deadline and MaxRun do.
func TestDo_Context(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoer(t, backendtest.Memory())
		ctx, cancel := context.WithCancel(t.Context())
		_, err := d.with(ctx, func(ctx context.Context) (receipt, error) {
			cancel()
			time.Sleep(time.Second)
			return receipt{}, ctx.Err()
		})
		check.OK(t, "a call whose context is canceled", err)
		for name, call := range map[string]func() error{
			"deadline": func() error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := d.with(ctx, untilEnd)
				return err
			},
			"MaxRun": func() error {
				_, err := d.with(t.Context(), untilEnd, idempotency.MaxRun(time.Second))
				return err
			},
		} {
			d.key, d.runs = name, 0
			check.Want(t, name, call(), idempotency.ErrUnknown)
			time.Sleep(time.Minute)
			check.Want(t, name, call(), idempotency.ErrUnknown)
			d.ran(t, 1)
		}
		d.key, d.runs = "before", 0
		_, err = d.with(ctx, nil)
		check.Ended(t, "a call whose context has ended", err, context.Canceled)
		d.ran(t, 0)
	})
}

func untilEnd(ctx context.Context) (receipt, error) {
	<-ctx.Done()
	return receipt{}, context.Cause(ctx)
}

// faultyBackend fails while fails says so.
type faultyBackend struct {
	core.Sealer
	extends, seals atomic.Bool
	largest        int
}

func (b *faultyBackend) Open(core.Environment) (core.Backend, error) { return b, nil }

func down(key string) error {
	return &core.UnavailableError{Key: key, Nodes: []error{errors.New("down")}}
}

func (b *faultyBackend) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	if b.extends.Load() {
		return core.Grant{}, down(g.Key)
	}
	return b.Sealer.Extend(ctx, g, ttl)
}

func (b *faultyBackend) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	switch {
	case b.seals.Load():
		return down(g.Key)
	case b.largest > 0 && len(value) > b.largest:
		return errors.New("the value is too large")
	}
	return b.Sealer.Seal(ctx, g, value, retention)
}

// If the store is down after the function has run, the result is returned, and recorded later.
func TestDo_StoreDownAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &faultyBackend{Sealer: backendtest.Memory()}
		d := newDoer(t, b)
		b.seals.Store(true)
		got, err := d.do(t, receipt{ID: "c1"}, nil)
		if err != nil || got.ID != "c1" {
			t.Errorf("the first call: %+v, %v", got, err)
		}
		b.seals.Store(false)
		time.Sleep(time.Minute)
		if got, err = d.do(t, receipt{}, nil); err != nil || got.ID != "c1" {
			t.Errorf("a later call: %+v, %v", got, err)
		}
		d.ran(t, 1)
	})
}

// A run whose claim another process has taken over has a result that nobody recorded.
func TestDo_Lost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		cut := &faultyBackend{Sealer: b}
		one, other := newDoer(t, cut), newDoer(t, b)
		cut.extends.Store(true)
		takeOver := idempotency.RecoverWith(func(context.Context, idempotency.Run) (receipt, idempotency.Recovery, error) {
			return receipt{ID: "recovered"}, idempotency.Answered, nil
		})
		var all sync.WaitGroup
		all.Go(func() {
			got, err := one.with(t.Context(), func(ctx context.Context) (receipt, error) {
				<-ctx.Done()
				check.Want(t, "the cause", context.Cause(ctx), core.ErrLost)
				time.Sleep(time.Minute)
				return receipt{ID: "late"}, nil
			})
			check.Want(t, "the first call", err, core.ErrLost)
			if got.ID != "late" {
				t.Errorf("the first call got %+v", got)
			}
		})
		time.Sleep(30 * time.Second)
		got, err := other.do(t, receipt{}, nil, takeOver)
		if err != nil || got.ID != "recovered" {
			t.Errorf("the second call: %+v, %v", got, err)
		}
		all.Wait()
		other.ran(t, 0)
		if got, err = one.do(t, receipt{}, nil); err != nil || got.ID != "recovered" {
			t.Errorf("the third call: %+v, %v", got, err)
		}
	})
}

// A result that cannot be kept goes to the first caller, and nothing runs twice.
func TestDo_NotKept(t *testing.T) {
	small := &faultyBackend{Sealer: backendtest.Memory(), largest: 300}
	for name, c := range map[string]struct {
		b    core.Opener
		opts []idempotency.DoOption
	}{
		"MaxBody":     {backendtest.Memory(), []idempotency.DoOption{idempotency.MaxBody(100)}},
		"the backend": {small, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoer(t, c.b)
			long := strings.Repeat("x", 400)
			got, err := d.do(t, receipt{ID: long}, nil, c.opts...)
			check.Want(t, "the first call", err, idempotency.ErrNotKept)
			if got.ID != long {
				t.Errorf("the first call got %+v", got)
			}
			got, err = d.do(t, receipt{}, nil, c.opts...)
			check.Want(t, "a later call", err, idempotency.ErrNotKept)
			if got.ID != "" {
				t.Errorf("a later call got %+v", got)
			}
			d.ran(t, 1)
		})
	}
}

// A later version of the type must read what was recorded.
func TestDo_Unreadable(t *testing.T) {
	d := newDoer(t, backendtest.Memory())
	_, err := d.do(t, receipt{ID: "c1"}, nil)
	check.OK(t, "the first call", err)
	_, err = idempotency.Do(t.Context(), d.Locker, d.key, func(context.Context) (int, error) { return 0, nil }, idempotency.Retain(time.Hour))
	check.Want(t, "a call with another type", err, idempotency.ErrUnreadable)
}

func TestDo_RecoverWith(t *testing.T) {
	broken := errors.New("the provider does not answer")
	for name, c := range map[string]struct {
		verdict idempotency.Recovery
		err     error
		want    error
		id      string
	}{
		"answered":            {idempotency.Answered, nil, nil, "asked"},
		"nothing was done":    {idempotency.RunHandler, nil, nil, "run again"},
		"still unknown":       {idempotency.StillUnknown, nil, idempotency.ErrUnknown, ""},
		"an error":            {idempotency.Answered, broken, broken, ""},
		"no verdict of these": {idempotency.Recovery(9), nil, idempotency.ErrUnknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDoer(t, backendtest.Memory())
				began := time.Now()
				var key string
				_, err := d.with(t.Context(), func(ctx context.Context) (_ receipt, err error) {
					key, err = idempotency.DeriveKey(ctx, "charge")
					return receipt{}, errors.Join(err, errors.New("the provider timed out"))
				})
				check.Want(t, "the first call", err, idempotency.ErrUnknown)
				time.Sleep(time.Minute)
				got, err := d.do(t, receipt{ID: "run again"}, nil, idempotency.RecoverWith(
					func(ctx context.Context, earlier idempotency.Run) (receipt, idempotency.Recovery, error) {
						if again, err := idempotency.DeriveKey(ctx, "charge"); again != key || err != nil || !earlier.Begun.Equal(began) {
							t.Errorf("DeriveKey is %q, %v and was %q; the run began at %v, want %v", again, err, key, earlier.Begun, began)
						}
						idempotency.NothingDone(ctx) // is about the earlier run
						return receipt{ID: "asked"}, c.verdict, c.err
					}))
				if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || got.ID != c.id {
					t.Errorf("the second call: %+v, %v; want %q, %v", got, err, c.id, c.want)
				}
				if c.want != nil {
					check.Want(t, "the second call", err, idempotency.ErrUnknown)
					time.Sleep(time.Minute)
					_, err = d.do(t, receipt{}, nil)
					check.Want(t, "the third call", err, idempotency.ErrUnknown)
				} else if again, err := d.do(t, receipt{}, nil); err != nil || again.ID != c.id {
					t.Errorf("the third call: %+v, %v", again, err)
				}
			})
		})
	}
}

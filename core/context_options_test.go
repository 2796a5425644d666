package core_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// Another handle on a lock refuses options that it would ignore, and names the key and the option.
// Options that say what the lock has already, and options about the wait, are fine.
func TestReentrance_RefusedOptions(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory(), core.WithTTL(time.Minute))
	k := acquire(t, l, "k", core.WithTTL(20*time.Second), core.WithTag("job"))
	defer func() { ok(t, "Release", k.Release(context.Background())) }()
	ctx := core.WithLock(t.Context(), k)
	calls := map[string]func(...core.AcquireOption) (*core.Lock, error){
		"Acquire":    func(opts ...core.AcquireOption) (*core.Lock, error) { return l.Acquire(ctx, "k", opts...) },
		"TryAcquire": func(opts ...core.AcquireOption) (*core.Lock, error) { return l.TryAcquire(ctx, "k", opts...) },
		"AcquireAny": func(opts ...core.AcquireOption) (*core.Lock, error) {
			return l.AcquireAny(ctx, []string{"j", "k"}, opts...)
		},
		"AcquireAll": func(opts ...core.AcquireOption) (*core.Lock, error) {
			all, err := l.AcquireAll(ctx, []string{"j", "k"}, opts...)
			if err != nil {
				return nil, err
			}
			return all[1], all[0].Release(ctx)
		},
	}
	for name, call := range calls {
		for option, o := range map[string]core.AcquireOption{
			"WithOrphan": core.WithOrphan(time.Hour), "WithTTL": core.WithTTL(time.Minute),
			"WithTag": core.WithTag("another"), "WithMaxHold": core.WithMaxHold(time.Hour),
		} {
			_, err := call(o)
			if err == nil || !strings.Contains(err.Error(), option) || !strings.Contains(err.Error(), `"k"`) {
				t.Errorf("%s with %s: %v", name, option, err)
			}
		}
		again, err := call(core.WithTTL(20*time.Second), core.WithTag("job"), core.WithOrphan(0), core.WithMaxHold(15*time.Minute),
			core.WithWait(0), core.WithOutageWait(0), core.WithToken())
		ok(t, name, err)
		ok(t, "Release", again.Release(t.Context()))
		again, err = call()
		ok(t, name, err)
		ok(t, "Release", again.Release(t.Context()))
	}
	if err := k.Err(); err != nil || status(t, l, "j") != core.Free {
		t.Errorf("the lock: %v; the other key is %v", err, status(t, l, "j"))
	}
}

// A lock that was given up is none: the options count.
func TestReentrance_OptionsAfterRelease(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	k := acquire(t, l, "k")
	ok(t, "Release", k.Release(t.Context()))
	again, err := l.Acquire(core.WithLock(t.Context(), k), "k", core.WithTTL(time.Minute))
	ok(t, "Acquire", err)
	ok(t, "Release", again.Release(t.Context()))
}

package core_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// 24 is 24 ns, without its unit. TTL, and the retention of a seal, refuse it.
func TestWithOrphan_Limits(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{-1, 1, 24, 10*time.Millisecond - 1, 1<<63 - 1} {
		if _, err := core.New(backendtest.Memory(), core.WithOrphan(d)); err == nil || !strings.Contains(err.Error(), "WithOrphan: "+d.String()) {
			t.Errorf("WithOrphan(%v): %v, want an error that says the option and the value", d, err)
		}
	}
	l := locker(t, backendtest.Memory(), core.WithOrphan(time.Hour))
	for _, d := range []time.Duration{0, 10 * time.Millisecond} { // 0 takes the default back
		ok(t, "Release", acquire(t, l, "k", core.WithOrphan(d)).Release(t.Context()))
	}
}

// The holder of a payment dies. The next one must not get the key because of a unit that is missing.
func TestWithOrphan_WithoutAUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory(), core.WithTTL(time.Second))
		k, err := l.Acquire(t.Context(), "pay:7", core.WithOrphan(24))
		if err != nil {
			return // refused
		}
		k.Lapse() // as if the process had died
		time.Sleep(2 * time.Second)
		if got := status(t, l, "pay:7"); got != core.Orphaned {
			t.Errorf("the key is %v, want orphaned", got)
		}
	})
}

// etcd refuses an owner that is not UTF-8 with each Acquire, as if the key were wrong. A text that was
// cut to its length has half a character at its end.
func TestInstanceAndTag_AreUTF8(t *testing.T) {
	t.Parallel()
	cut := strings.Repeat("订", 86)[:256]
	for says, o := range map[string]core.Option{"instance": core.WithInstance("shop-\xff"), "WithTag": core.WithTag(cut)} {
		if _, err := core.New(backendtest.Memory(), o); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("New with a wrong %s: %v", says, err)
		}
	}
	l := locker(t, backendtest.Memory())
	if _, err := l.TryAcquire(t.Context(), "k", core.WithTag(cut)); err == nil || !strings.Contains(err.Error(), "WithTag") {
		t.Errorf("TryAcquire with half a character: %v", err)
	}
}

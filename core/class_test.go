package core_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/version"
	"github.com/onelane/onelane/testutil/backendtest"
)

func firstPart(key string) string {
	class, _, _ := strings.Cut(key, ":")
	return class
}

// series returns the names and labels of what a Locker measured, of some instruments.
func series(t *testing.T, m *meters, names ...string) (all []string) {
	for s, n := range m.read(t) {
		if name, _, _ := strings.Cut(s, "{"); slices.Contains(names, name) && n > 0 {
			all = append(all, fmt.Sprint(strings.TrimPrefix(s, "onelane."), " ", n))
		}
	}
	slices.Sort(all)
	return all
}

var classed = []string{"onelane.acquire.duration", "onelane.hold.duration", "onelane.locks.lost", "onelane.waiters"}

func TestClass_LabelsTheMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMeters()
		l := locker(t, backendtest.Memory(), core.WithClass(firstPart), core.WithTelemetry(m, nil))
		ok(t, "Release", acquire(t, l, "order:7").Release(t.Context()))
		acquire(t, l, "stock:42", core.WithMaxHold(0), core.WithTTL(time.Second))
		time.Sleep(2 * time.Second)
		k := acquire(t, l, "stock:43")
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			go func() { _, _ = l.Acquire(ctx, "stock:43") }()
		}
		synctest.Wait()
		want := []string{
			"acquire.duration{onelane.class=order,onelane.outcome=granted} 1",
			"acquire.duration{onelane.class=stock,onelane.outcome=granted} 2",
			"hold.duration{onelane.class=order,onelane.end=released} 1",
			"hold.duration{onelane.class=stock,onelane.end=lost} 1",
			"locks.lost{onelane.class=stock,onelane.reason=ttl} 1",
			"waiters{onelane.class=stock} 3",
		}
		if got := series(t, m, classed...); !slices.Equal(got, want) {
			t.Errorf("got\n%q\nwant\n%q", got, want)
		}
		cancel()
		synctest.Wait()
		ok(t, "Release", k.Release(t.Context()))
	})
}

// Callers wait behind others of this process, for another process, and through an outage. A call that
// gets its lock at once does not wait, nor does TryAcquire.
func TestWaiters_AreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, s := newMeters(), memorySpy()
		l := locker(t, s, core.WithTelemetry(m, nil))
		waiting := func() int64 {
			synctest.Wait()
			return m.read(t)["onelane.waiters{}"]
		}
		theirs := acquire(t, locker(t, s), "k")
		got := make(chan *core.Lock)
		for range 2 {
			go func() { got <- acquire(t, l, "k") }()
		}
		_, err := l.TryAcquire(t.Context(), "k")
		want(t, "TryAcquire", err, core.ErrTaken)
		time.Sleep(time.Second)
		if n := waiting(); n != 2 {
			t.Errorf("%d waiters, want 2", n)
		}
		ok(t, "Release", theirs.Release(t.Context()))
		first := <-got
		if n := waiting(); n != 1 {
			t.Errorf("%d waiters behind a holder of this process, want 1", n)
		}
		ok(t, "Release", first.Release(t.Context()))
		ok(t, "Release", (<-got).Release(t.Context()))
		s.on("acquire", func(context.Context) error { return unavailable("k") })
		go func() { _, _ = l.Acquire(t.Context(), "k") }()
		time.Sleep(time.Second)
		if n := waiting(); n != 1 {
			t.Errorf("%d waiters in an outage, want 1", n)
		}
		time.Sleep(time.Minute)
		if n := waiting(); n != 0 {
			t.Errorf("%d waiters after all, want none", n)
		}
	})
}

// A function that makes a class of each key does not make a series of each key.
func TestClass_AtMost64(t *testing.T) {
	t.Parallel()
	m := newMeters()
	l := locker(t, backendtest.Memory(), core.WithTelemetry(m, nil), core.WithClass(func(key string) string {
		return strings.TrimPrefix(key, "-")
	}))
	for i := range 1000 {
		ok(t, "Release", acquire(t, l, fmt.Sprintf("-%d", i)).Release(t.Context()))
	}
	for _, key := range []string{"-", "-" + strings.Repeat("x", 65)} {
		ok(t, "Release", acquire(t, l, key).Release(t.Context()))
	}
	got := m.read(t)
	classes := make(map[string]bool)
	for s := range got {
		if _, class, found := strings.Cut(s, "onelane.class="); found {
			class, _, _ = strings.Cut(class, ",")
			classes[class] = true
		}
	}
	if len(classes) != 65 || !classes["other"] || !classes["0"] || !classes["63"] {
		t.Errorf("%d classes, want 64 and \"other\": %q", len(classes), slices.Sorted(maps.Keys(classes)))
	}
	if n := got["onelane.acquire.duration{onelane.class=other,onelane.outcome=granted}"]; n != 1002-64 {
		t.Errorf("%d locks are of the class \"other\", want %d", n, 1002-64)
	}
}

// A function that panics breaks no lock.
func TestClass_Panics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, m := &records{}, newMeters()
		l := locker(t, backendtest.Memory(), core.WithTelemetry(m, nil), core.WithLogger(slog.New(log)),
			core.WithClass(func(key string) string { return key[:100] }))
		for range 5 {
			ok(t, "Release", acquire(t, l, "stock:42").Release(t.Context()))
		}
		synctest.Wait()
		if n := m.read(t)["onelane.acquire.duration{onelane.class=other,onelane.outcome=granted}"]; n != 5 {
			t.Errorf("%d locks are of the class \"other\", want 5", n)
		}
		if lines, _ := log.logged("WARN core: the function of WithClass panicked"); lines != 1 || !log.has("slice bounds out of range") {
			t.Errorf("%d lines, want one with the panic: %q", lines, log.text)
		}
	})
}

// The scope of the metrics carries the version of the module.
func TestMetrics_ScopeVersion(t *testing.T) {
	t.Parallel()
	m := newMeters()
	l := locker(t, backendtest.Memory(), core.WithTelemetry(m, nil))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	var all metricdata.ResourceMetrics
	ok(t, "Collect", m.reader.Collect(t.Context(), &all))
	for _, s := range all.ScopeMetrics {
		if s.Scope.Version != version.Of() {
			t.Errorf("scope %s has version %q, want %q", s.Scope.Name, s.Scope.Version, version.Of())
		}
	}
	t.Logf("version %q", version.Of())
}

func TestPing(t *testing.T) {
	t.Parallel()
	s := memorySpy()
	l := locker(t, s)
	ok(t, "Ping", l.Ping(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantEnded(t, "Ping with a context that is done", l.Ping(ctx), context.Canceled)
	s.on("ping", func(context.Context) error { return unavailable("") })
	err := l.Ping(t.Context())
	want(t, "Ping", err, core.ErrUnavailable)
	if got := err.Error(); got != "core: backend is unavailable: no answer" {
		t.Errorf("Ping: %v", got)
	}
	ok(t, "Close", l.Close())
	want(t, "Ping after Close", l.Ping(t.Context()), core.ErrClosed)
}

// A log that blocks does not hold up a caller whose class function panics.
func TestClass_PanicsWithASlowLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &busyHandler{Handler: slog.DiscardHandler}
		l := locker(t, backendtest.Memory(), core.WithLogger(slog.New(log)), core.WithClass(func(string) string { panic("no class") }))
		start := time.Now()
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		if took := time.Since(start); took > 0 {
			t.Errorf("a lock took %v", took)
		}
		time.Sleep(time.Hour)
	})
}

// A lock from AcquireAny counts for the class of its own key.
func TestClass_AcquireAny(t *testing.T) {
	t.Parallel()
	m := newMeters()
	l := locker(t, backendtest.Memory(), core.WithClass(firstPart), core.WithTelemetry(m, nil))
	k := acquire(t, l, "fax:1")
	ok(t, "Release", acquireAny(t, l, []string{"fax:1", "phone:1"}).Release(t.Context()))
	ok(t, "Release", k.Release(t.Context()))
	want := []string{
		"acquire.duration{onelane.class=fax,onelane.outcome=granted} 1",
		"acquire.duration{onelane.class=phone,onelane.outcome=granted} 1",
		"hold.duration{onelane.class=fax,onelane.end=released} 1",
		"hold.duration{onelane.class=phone,onelane.end=released} 1",
	}
	if got := series(t, m, classed...); !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

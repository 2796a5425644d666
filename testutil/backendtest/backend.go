// Package backendtest is for tests that need no server. [Memory] is for tests of a service;
// [TestBackend] and [TestSealer] are for tests of a backend. Besides this module it imports only
// the API of OpenTelemetry.
package backendtest

import (
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
)

// suiteWidth is how many cases of a suite run at a time. Most of their time they wait for the
// end of a lease.
const suiteWidth = 16

// suiteCase is one subtest of TestBackend or TestSealer.
type suiteCase struct {
	name string
	run  func(*suite)
}

// TestBackend is the conformance suite of core.Backend: leases, tokens, wake-ups. open returns the
// backend of one subtest. It may return the same one each time, because keys are unique. The suite
// takes a few seconds of real time. For a core.Sealer, call [TestSealer] instead.
//
//	backendtest.TestBackend(t, func(t *testing.T) core.Backend {
//		return backendtest.Open(t, backendtest.Memory())
//	})
func TestBackend(t *testing.T, open func(t *testing.T) core.Backend) {
	t.Helper()
	run(t, open, slices.Concat(leaseCases, tokenCases, watchCases, pingCases, verbCases))
}

// TestSealer is the conformance suite of core.Sealer. It runs the cases of [TestBackend], and those
// about seals and orphans. A backend that is no core.Sealer fails.
func TestSealer(t *testing.T, open func(t *testing.T) core.Backend) {
	t.Helper()
	run(t, open, slices.Concat(leaseCases, tokenCases, watchCases, pingCases, verbCases,
		sealCases, orphanCases, adoptionCases, sealerTokenCases, sealerWatchCases, sealerVerbCases))
}

func run(t *testing.T, open func(t *testing.T) core.Backend, all []suiteCase) {
	t.Helper()
	var cases sync.WaitGroup
	running := make(chan struct{}, suiteWidth)
	for _, c := range all {
		cases.Go(func() {
			running <- struct{}{}
			defer func() { <-running }()
			t.Run(c.name, func(t *testing.T) { c.run(&suite{T: t, b: open(t), ctx: t.Context()}) })
		})
	}
	cases.Wait()
}

// Open opens a backend as core.New does and closes it when the test ends.
//
//	b := backendtest.Open(t, backendtest.Memory())
//	g, err := b.Acquire(t.Context(), core.Request{Key: "stock:42", Owner: "me/1", TTL: time.Minute})
//	if err != nil {
//		t.Fatal(err)
//	}
//	if _, err := b.Release(t.Context(), g); err != nil {
//		t.Error(err)
//	}
func Open(t testing.TB, o core.Opener) core.Backend {
	t.Helper()
	b, err := o.Open(core.Environment{
		TTL: long, Logger: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter("backendtest"),
	})
	if err != nil {
		t.Fatalf("backendtest: open the backend: %v", err)
	}
	if own, ok := o.(core.Backend); ok && reflect.TypeOf(o) != reflect.TypeOf(b) {
		b = own // as core.New
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("backendtest: close the backend: %v", err)
		}
	})
	return b
}

package idempotency_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// twice runs a step in two runs of a request, and returns what each run got.
func twice[T any](t *testing.T, result T) (got [2]T, errs [2]error) {
	t.Helper()
	l := longLocker(t, backendtest.Memory())
	for i := range got {
		runStep(t, l, "7 EUR", func(ctx context.Context) {
			got[i], errs[i] = idempotency.Step(ctx, "charge", func(context.Context) (T, error) { return result, nil })
		})
	}
	return got, errs
}

// The first run gets what a later run gets, not the value that its function returned.
func TestStep_FirstRunReadsBack(t *testing.T) {
	at := time.Now() // with a reading of the monotonic clock
	got, errs := twice(t, receipt{ID: "c1", At: at, Secret: "s"})
	if errs != [2]error{} || !reflect.DeepEqual(got[0], got[1]) || got[0].Secret != "" || !got[0].At.Equal(at) {
		t.Errorf("the first run got %#v, %v; the second %#v, %v", got[0], errs[0], got[1], errs[1])
	}
	// JSON makes a float64 of this id, and keeps no interface with a method.
	_, errs = twice(t, struct{ ID any }{int64(616581622363398142)})
	_, more := twice(t, struct{ Method error }{errDeclined})
	for _, err := range append(errs[:], more[:]...) {
		if err == nil || !strings.Contains(err.Error(), "the result cannot be recorded") {
			t.Errorf("a type that JSON does not keep: %v", err)
		}
	}
}

// A later run learns at once, and not when a lease has ended, that a step has failed or panicked.
func TestStep_FailedIsKnownAtOnce(t *testing.T) {
	for name, fn := range map[string]func() (charge, error){
		"error": func() (charge, error) { return charge{}, errors.New("timeout") },
		"panic": func() (charge, error) { panic("poison") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := longLocker(t, backendtest.Memory())
				runStep(t, l, "7 EUR", func(ctx context.Context) {
					defer func() { _ = recover() }()
					_, _ = idempotency.Step(ctx, "charge", func(context.Context) (charge, error) { return fn() })
				})
				began := time.Now()
				_, ran, err := oneStep(t, l, "charge", nil)
				check.Want(t, "the second run", err, idempotency.ErrStepUnknown)
				if took := time.Since(began); ran || took != 0 {
					t.Errorf("the second run ran the step: %v; after %v", ran, took)
				}
			})
		})
	}
}

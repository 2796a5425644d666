package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// A form that is sent again after the window is another request: it gets no result of the earlier one.
func TestRefuseRepeats_Steps(t *testing.T) {
	t.Parallel()
	for name, keyed := range map[string]bool{"alone": false, "under a key": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			use := idempotency.WithLocker(testutil.Locker(t))
			var charges atomic.Int64
			derived := make(chan string, 10)
			h := idempotency.RefuseRepeats(50*time.Millisecond, use)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				charge := func(context.Context) (int64, error) { return charges.Add(1), nil }
				_, stepErr := idempotency.Step(r.Context(), "charge", charge)
				key, err := idempotency.DeriveKey(r.Context(), "charge")
				once := gormlock.ClaimKey(r.Context(), "charge")
				if keyed {
					if stepErr != nil || err != nil {
						t.Error(stepErr, err)
					}
					derived <- key + once
				} else {
					if !errors.Is(stepErr, idempotency.ErrNoClaim) || !errors.Is(err, idempotency.ErrNoClaim) {
						t.Error(stepErr, err)
					}
					derived <- once
				}
				w.WriteHeader(http.StatusCreated)
			}))
			if keyed {
				h = idempotency.ByHeader("Idempotency-Key", use)(h)
			}
			s := serve(t, h)
			send := func(key string) string {
				check.Eventually(t, "the window is over", func() bool { return s.order("a form", "Idempotency-Key", key).status == http.StatusCreated })
				return <-derived
			}
			first, second := send("k1"), send("k2")
			switch n := charges.Load(); {
			case keyed && (n != 2 || first == second):
				t.Errorf("%d charges with the keys %s and %s", n, first, second)
			case !keyed && (n != 0 || first+second != ""):
				t.Errorf("%d charges with the keys %q and %q, although no key tells the requests apart", n, first, second)
			}
		})
	}
}

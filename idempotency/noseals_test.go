package idempotency_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A Locker that keeps leases only cannot keep records. If it is known, the wiring panics.
func TestNoSeals_Wiring(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(check.Locker(t, check.LeasesOnly{Backend: backendtest.Memory()}))
	for name, wire := range map[string]func(){
		"ByHeader":      func() { idempotency.ByHeader("Idempotency-Key", l) },
		"ByKey":         func() { idempotency.ByKey("order:{param.id}", l, idempotency.RunAgain()) },
		"RefuseRepeats": func() { idempotency.RefuseRepeats(time.Minute, l) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, "Sentinel, Redis Cluster, etcd, ZooKeeper") {
					t.Errorf("panic %q does not name the backends that keep records", got)
				}
			}()
			wire()
		})
	}
	idempotency.LockByKey("stock:{param.id}", l) // a plain lock needs no records
}

// If the Locker is set later, the first request is refused and its handler does not run.
func TestNoSeals_FirstRequest(t *testing.T) {
	for name, opts := range map[string][]idempotency.HTTPOption{
		"default": nil, "RunAgain": {idempotency.RunAgain()}, "FailOpen": {idempotency.FailOpen()},
	} {
		t.Run(name, func(t *testing.T) {
			once := idempotency.ByHeader("Idempotency-Key", opts...)
			core.SetDefault(check.Locker(t, check.LeasesOnly{Backend: backendtest.Memory()}))
			defer core.SetDefault(nil)
			ran := false
			mux := http.NewServeMux()
			mux.Handle("POST /orders/7", once(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true })))
			s := serve(t, mux)
			if a := s.order("1"); a.code() != idempotency.CodeMisconfigured || ran {
				t.Errorf("the answer is %q, ran %v; want %q and no run", a.code(), ran, idempotency.CodeMisconfigured)
			}
		})
	}
}

package idempotency_test

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A handler charges at another server and passes on that server's "it is running". The outcome is
// unknown, too, if the answer is not held back.
func TestDefaultFate_PassesOnAtOnce(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	header := idempotency.ByHeader("Idempotency-Key", l)
	for name, once := range map[string]func(http.Handler) http.Handler{
		"RefuseRepeats": idempotency.RefuseRepeats(time.Minute, l),
		"MaxBody":       idempotency.ByHeader("Idempotency-Key", l, idempotency.MaxBody(0)),
		"flushed":       header,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var charges atomic.Int64
			s := serve(t, once(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				charges.Add(1)
				p := idempotency.RefusalOf(idempotency.CodeInFlight)
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(p.Status)
				if name == "flushed" {
					_ = http.NewResponseController(w).Flush()
				}
				_ = json.NewEncoder(w).Encode(p)
			})))
			s.order(name, "Idempotency-Key", name)
			s.order(name, "Idempotency-Key", name)
			if charges.Load() != 1 {
				t.Errorf("%d charges", charges.Load())
			}
		})
	}
}

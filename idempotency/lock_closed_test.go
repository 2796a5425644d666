package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// The Locker is closed while a handler runs: by the other server of the process, or when the time for
// http.Server's Shutdown is over. A handler that gives up then has not answered 200.
func TestLockByKey_LockerClosed(t *testing.T) {
	t.Parallel()
	for name, keyed := range map[string]bool{"lock": false, "under a key on another Locker": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := testutil.Locker(t)
			h := idempotency.LockByKey("order:7", idempotency.WithLocker(l))(http.HandlerFunc(
				func(_ http.ResponseWriter, r *http.Request) {
					closed := make(chan error, 1)
					go func() { closed <- l.Close() }()
					<-r.Context().Done()
					if cause := context.Cause(r.Context()); !errors.Is(cause, core.ErrClosed) {
						t.Errorf("the context ended with %v", cause)
					}
					if err := <-closed; err != nil {
						t.Error(err)
					}
				}))
			if keyed {
				h = idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(shortLocker(t)))(h)
			}
			s := serve(t, h)
			s.order("").refused(t, idempotency.CodeLockLost)
			if keyed { // no retry gets an answer that nobody gave
				ended(t, func() answer { return s.order("") }).refused(t, idempotency.CodeOutcomeUnknown)
			}
		})
	}
}

package ginlock_test

import (
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestLockByKey_OrphanedKey(t *testing.T) {
	t.Parallel()
	l, err := core.New(backendtest.Memory())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := serve(t, func(r *gin.Engine) {
		opts := []idempotency.LockOption{idempotency.WithLocker(l), idempotency.FailOpen()}
		r.POST("/orders/:id", ginlock.LockByKey("order:{param.id}", opts...), func(c *gin.Context) { c.String(200, "ran") })
	})
	check.Orphan(t, l, "order:1")
	a := s.do("POST", "/orders/1", "")
	a.wantProblem(t, 409, idempotency.CodeOutcomeUnknown)
	if p := a.problem(t); p.Retryable || p.Correction == "" || a.header.Get("Retry-After") != "" {
		t.Errorf("problem %+v, Retry-After %q; want one that is not retryable", p, a.header.Get("Retry-After"))
	}
	if err := l.Unseal(t.Context(), "order:1"); err != nil {
		t.Fatal(err)
	}
	s.do("POST", "/orders/1", "").want(t, 200, "ran", false)
}

package ginlock_test

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/undone"
)

func TestFail_AbortsAndFrees(t *testing.T) {
	t.Parallel()
	var runs, after atomic.Int64
	next := undone.Mark(errors.New("bad connection"))
	s := post(t, func(c *gin.Context) {
		ginlock.Fail(c, nil)
		if runs.Add(1) == 1 {
			ginlock.Fail(c, next)
		} else {
			ginlock.Fail(c, errors.New("no such order"))
		}
		if !c.IsAborted() {
			after.Add(1)
		}
	})
	first := s.do(http.MethodPost, "/orders", "7", idempotencyKey, "k")
	if p := first.problem(t); first.status != 503 || p.Code != idempotency.CodeNothingDone || first.header.Get("Retry-After") == "" {
		t.Fatalf("got %d %s", first.status, first.body)
	}
	for i := range 2 {
		again := s.do(http.MethodPost, "/orders", "7", idempotencyKey, "k")
		if p := again.problem(t); again.status != 500 || p.Code != idempotency.CodeFailed || again.replayed() != (i == 1) {
			t.Fatalf("got %d %s, replayed %v", again.status, again.body, again.replayed())
		}
	}
	if runs.Load() != 2 || after.Load() != 0 {
		t.Errorf("%d runs, %d not aborted", runs.Load(), after.Load())
	}
}

// A lock inside of the handler is busy, and the key around it is free.
func TestFail_BusyLock(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		if runs.Add(1) == 1 {
			ginlock.Fail(c, &core.TakenError{Key: "stock:42"})
			return
		}
		c.Status(http.StatusCreated)
	})
	if first := s.do(http.MethodPost, "/orders", "7", idempotencyKey, "k"); first.problem(t).Code != idempotency.CodeLockBusy {
		t.Fatalf("got %d %s", first.status, first.body)
	}
	if again := s.do(http.MethodPost, "/orders", "7", idempotencyKey, "k"); again.status != 201 || again.replayed() {
		t.Fatalf("got %d %s", again.status, again.body)
	}
}

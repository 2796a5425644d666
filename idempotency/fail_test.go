package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/undone"
	"github.com/onelane/onelane/testutil"
)

// failures are errors of a handler, what Fail answers, and what a retry gets.
var failures = map[string]struct {
	err    error
	status int
	code   string
	retry  string // a code, or "" if the handler runs again
}{
	"busy":        {&core.TakenError{Key: "stock:42"}, 409, idempotency.CodeLockBusy, ""},
	"unavailable": {undone.Mark(core.ErrUnavailable), 503, idempotency.CodeLockUnavailable, ""},
	"rolled back": {undone.Mark(errors.New("bad connection")), 503, idempotency.CodeNothingDone, ""},
	"COMMIT":      {sqlerr.ErrCommitUnknown, 504, idempotency.CodeOutcomeUnknown, idempotency.CodeOutcomeUnknown},
	"lost":        {core.ErrLost, 409, idempotency.CodeLockLost, idempotency.CodeOutcomeUnknown},
	"time out":    {context.DeadlineExceeded, 504, idempotency.CodeOutcomeUnknown, idempotency.CodeOutcomeUnknown},
	"other":       {errors.New("secret"), 500, idempotency.CodeFailed, idempotency.CodeFailed},
	"with refund": {errors.Join(undone.Mark(errors.New("bad connection")), errors.New("no refund")), 500,
		idempotency.CodeFailed, idempotency.CodeFailed},
}

func TestFail_AnswersAndFrees(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		l := shortLocker(t)
		for name, c := range failures {
			t.Run(strings.Join([]string{name, map[bool]string{true: "h2", false: "h1"}[h2]}, " "), func(t *testing.T) {
				t.Parallel()
				var runs atomic.Int64
				once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(l))
				ts := httptest.NewUnstartedServer(once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					runs.Add(1)
					idempotency.Fail(w, r, nil)
					idempotency.Fail(w, r, c.err)
				})))
				ts.EnableHTTP2 = h2
				ts.StartTLS()
				t.Cleanup(ts.Close)
				s := &server{t: t, url: ts.URL, host: "shop.example", client: ts.Client()}
				first := s.order("7", "Idempotency-Key", name+map[bool]string{true: "2", false: "1"}[h2])
				if first.status != c.status || first.code() != c.code || strings.Contains(first.body, "secret") {
					t.Fatalf("got %d %s; want %d %s", first.status, first.body, c.status, c.code)
				}
				if after := first.header.Get("Retry-After"); (after != "") != (c.retry == "") {
					t.Errorf("Retry-After %q", after)
				}
				retry := ended(t, func() answer {
					return s.order("7", "Idempotency-Key", name+map[bool]string{true: "2", false: "1"}[h2])
				})
				switch {
				case c.retry == "" && runs.Load() != 2:
					t.Errorf("%d runs, and the retry gets %d %s", runs.Load(), retry.status, retry.body)
				case c.retry != "" && (runs.Load() != 1 || retry.code() != c.retry):
					t.Errorf("%d runs, and the retry gets %d %s", runs.Load(), retry.status, retry.body)
				case retry.replayed() != (c.retry == idempotency.CodeFailed):
					t.Errorf("replayed: %v", retry.replayed())
				}
			})
		}
	}
}

// An answer of Recover that nothing was done is about the retry, and not about the earlier run.
func TestFail_InRecover(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, shortLocker(t), func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		w.WriteHeader(http.StatusGatewayTimeout)
	}, idempotency.Recover(func(w http.ResponseWriter, r *http.Request, _ idempotency.Run) idempotency.Recovery {
		idempotency.Fail(w, r, &core.TakenError{Key: "order:7"})
		return idempotency.Answered
	}))
	s.order("7")
	for range 2 {
		ended(t, func() answer { return s.order("7") }).refused(t, idempotency.CodeLockBusy)
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// Fail writes as the middleware does, and works without a claim.
func TestFail_FormatAndNoClaim(t *testing.T) {
	t.Parallel()
	format := idempotency.WithProblemWriter(func(w http.ResponseWriter, _ *http.Request, p idempotency.Refusal) {
		w.WriteHeader(p.Status)
		_, _ = w.Write([]byte("own " + p.Code))
	})
	h := func(w http.ResponseWriter, r *http.Request) { idempotency.Fail(w, r, &core.TakenError{Key: "k"}) }
	s := orders(t, testutil.Locker(t), h, format)
	s.order("7").want(t, 409, "own lock_busy", false)
	plain := serve(t, http.HandlerFunc(h))
	plain.order("7").refused(t, idempotency.CodeLockBusy)
}

func TestFail_RefuseRepeats(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(shortLocker(t))
	s := serve(t, idempotency.RefuseRepeats(time.Minute, l)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		idempotency.Fail(w, r, errors.New("secret"))
	})))
	if a := s.order("7"); a.status != 500 || a.code() != idempotency.CodeFailed {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

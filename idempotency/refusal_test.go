package idempotency_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// allOK answers every refusal with 200 and a code in the body, as some shops do.
var allOK = idempotency.WithProblemWriter(func(w http.ResponseWriter, _ *http.Request, p idempotency.Refusal) {
	_ = json.NewEncoder(w).Encode(map[string]any{"code": 10001, "message": p.Code})
})

// busyStock returns a Locker on which stock:7 is taken, and a function that releases it.
func busyStock(t *testing.T) (l *core.Locker, release func()) {
	t.Helper()
	l = testutil.Locker(t)
	busy, err := l.TryAcquire(t.Context(), "stock:7")
	must(t, err)
	return l, func() { must(t, busy.Release(context.Background())) }
}

// The refusal of a lock inside is no answer of the handler: whatever its status, it is not recorded.
func TestRefusal_BusyLockInside(t *testing.T) {
	t.Parallel()
	final := idempotency.Decide(func(status int, h http.Header) idempotency.Fate {
		if status == 409 { // sold out
			return idempotency.KeepAnswer
		}
		return idempotency.DefaultFate(status, h)
	})
	bought := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "bought") }
	for name, handler := range map[string]func(l idempotency.SharedOption) http.Handler{
		"problem writer": func(l idempotency.SharedOption) http.Handler {
			lock := idempotency.LockByKey("stock:7", l, allOK)
			return idempotency.ByHeader("Idempotency-Key", l)(lock(http.HandlerFunc(bought)))
		},
		"problem writer, Gin": func(l idempotency.SharedOption) http.Handler {
			r := gin.New()
			lock := ginlock.LockByKey("stock:7", l, allOK)
			r.POST("/orders/:id", ginlock.ByHeader("Idempotency-Key", l), lock, gin.WrapF(bought))
			return r
		},
		"Decide": func(l idempotency.SharedOption) http.Handler {
			lock := idempotency.LockByKey("stock:7", l)
			return idempotency.ByHeader("Idempotency-Key", l, final)(lock(http.HandlerFunc(bought)))
		},
		"two middlewares around": func(l idempotency.SharedOption) http.Handler {
			lock := idempotency.LockByKey("stock:7", l, allOK)
			form := idempotency.RefuseRepeats(time.Minute, l)
			return form(idempotency.ByHeader("Idempotency-Key", l)(lock(http.HandlerFunc(bought))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, release := busyStock(t)
			s := serve(t, handler(idempotency.WithLocker(l)))
			if a := s.order(""); !strings.Contains(a.body, idempotency.CodeLockBusy) {
				t.Errorf("%d %s", a.status, a.body)
			}
			release()
			ended(t, func() answer { return s.order("") }).want(t, 200, "bought", false)
		})
	}
}

// The answer of a handler that goes on after a refusal counts.
func TestRefusal_HandlerGoesOn(t *testing.T) {
	t.Parallel()
	for name, goOn := range map[string]func(http.ResponseWriter){
		"body":   func(w http.ResponseWriter) { fmt.Fprint(w, "bought all the same") },
		"status": func(w http.ResponseWriter) { w.WriteHeader(201) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, release := busyStock(t)
			defer release()
			lock := idempotency.LockByKey("stock:7", idempotency.WithLocker(l), allOK)
			var runs atomic.Int64
			s := orders(t, l, func(w http.ResponseWriter, r *http.Request) {
				lock(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
				runs.Add(1)
				goOn(w)
			})
			first := s.order("")
			s.order("").want(t, 200, first.body, true)
			if runs.Load() != 1 {
				t.Errorf("%d runs", runs.Load())
			}
		})
	}
}

// A request that a middleware inside refused runs when the program is mended.
func TestRefusal_OfAnyStatusInside(t *testing.T) {
	t.Parallel()
	for name, inner := range map[string]func(fixed *atomic.Bool) func(http.Handler) http.Handler{
		"misconfigured (500)": func(fixed *atomic.Bool) func(http.Handler) http.Handler {
			l := testutil.Locker(t)
			good := idempotency.LockByKey("order:{param.id}", idempotency.WithLocker(l))
			bad := idempotency.LockByKey("order:{param.order}", idempotency.WithLocker(l)) // no such parameter
			return func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if fixed.Load() {
						good(h).ServeHTTP(w, r)
					} else {
						bad(h).ServeHTTP(w, r)
					}
				})
			}
		},
		"too large (413)": func(fixed *atomic.Bool) func(http.Handler) http.Handler {
			l := testutil.Locker(t)
			good := idempotency.LockByKey("order:{json.id}", idempotency.WithLocker(l))
			bad := idempotency.LockByKey("order:{json.id}", idempotency.WithLocker(l), idempotency.MaxRequestBody(10))
			return func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if fixed.Load() {
						good(h).ServeHTTP(w, r)
					} else {
						bad(h).ServeHTTP(w, r)
					}
				})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var fixed atomic.Bool
			h := inner(&fixed)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "made") }))
			s := orders(t, testutil.Locker(t), h.ServeHTTP)
			body := `{"id":7,"note":"` + strings.Repeat("x", 20) + `"}`
			s.order(body, "Content-Type", "application/json")
			fixed.Store(true) // the next version of the program
			ended(t, func() answer { return s.order(body, "Content-Type", "application/json") }).want(t, 200, "made", false)
		})
	}
}

// The table of refusals in both languages has each of them, with its status.
func TestRefusals_Documented(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([0-9]+) \\|.*\\| (yes|no|可以|不行) \\|$")
	for _, name := range []string{"../docs/idempotency.md", "../docs/zh-CN/idempotency.md"} {
		page, err := os.ReadFile(name)
		must(t, err)
		rows := row.FindAllStringSubmatch(string(page), -1)
		for _, found := range rows {
			p := idempotency.RefusalOf(found[1])
			again := found[3] == "yes" || found[3] == "可以"
			if strconv.Itoa(p.Status) != found[2] || p.Retryable != again {
				t.Errorf("%s: %s is %d, retryable %t; not %s, %s", name, found[1], p.Status, p.Retryable, found[2], found[3])
			}
		}
		if len(rows) != len(idempotency.Refusals) {
			t.Errorf("%s has %d of %d refusals", name, len(rows), len(idempotency.Refusals))
		}
	}
}

// A 401 has a challenge: that of the authentication outside, if it has set one.
func TestRefusal_Challenge(t *testing.T) {
	t.Parallel()
	once := idempotency.ByKey("{principal}", idempotency.WithLocker(testutil.Locker(t)))(http.NotFoundHandler())
	for _, outside := range []string{"", `Basic realm="shop"`} {
		s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if outside != "" {
				w.Header().Set("WWW-Authenticate", outside)
			}
			once.ServeHTTP(w, r)
		}))
		a := s.order("")
		a.refused(t, idempotency.CodePrincipalMissing)
		if got := a.header.Values("WWW-Authenticate"); len(got) != 1 || got[0] != cmp.Or(outside, "Bearer") {
			t.Errorf("the challenges are %q", got)
		}
	}
}

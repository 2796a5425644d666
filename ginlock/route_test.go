package ginlock_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A lock on the order and idempotency on the key, on one route, in either order.
func TestTwoOnOneRoute(t *testing.T) {
	t.Parallel()
	for _, lockOutside := range []bool{true, false} {
		t.Run(map[bool]string{true: "lock outside", false: "lock inside"}[lockOutside], func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			g, l := newGate(t), testutil.Locker(t)
			chain := []gin.HandlerFunc{
				ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l)),
				ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)),
			}
			if !lockOutside {
				chain[0], chain[1] = chain[1], chain[0]
			}
			s := serve(t, func(r *gin.Engine) {
				r.POST("/orders/:id", append(chain, func(c *gin.Context) {
					if c.GetHeader("X-Stand") != "" {
						g.handle(c)
					}
					c.String(http.StatusCreated, "run %d", runs.Add(1))
				})...)
			})
			take := func(id, key string, header ...string) answer {
				return s.do("POST", "/orders/"+id, "", append(header, idempotencyKey, key)...)
			}
			first := later(func() answer { return take("1", "ann", "X-Stand", "1") })
			g.wait(t)
			take("1", "bob").wantProblem(t, 409, idempotency.CodeLockBusy) // another key, the same order
			busy := take("1", "ann")                                       // the same key
			if want := map[bool]string{true: idempotency.CodeLockBusy, false: idempotency.CodeInFlight}[lockOutside]; busy.problem(t).Code != want {
				t.Errorf("%s, want %s", busy.body, want)
			}
			take("2", "eve").want(t, 201, "run 1", false) // another order
			close(g.open)
			(<-first).want(t, 201, "run 2", false)
			take("1", "ann").want(t, 201, "run 2", true)
			take("1", "bob").want(t, 201, "run 3", false) // the refusal was not recorded
			take("1", "bob").want(t, 201, "run 3", true)
		})
	}
}

// Two engines under two prefixes have routes of one name.
func TestMount_TwoEngines(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	engine := func(name string) http.Handler {
		r := gin.New()
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), func(c *gin.Context) {
			c.String(201, "%s run %d", name, runs.Add(1))
		})
		return r
	}
	mux := http.NewServeMux()
	mux.Handle("/a/", http.StripPrefix("/a", engine("a")))
	mux.Handle("/b/", http.StripPrefix("/b", engine("b")))
	ts := httptest.NewServer(mux)
	t.Cleanup(ts.Close)
	s := &server{t: t, url: ts.URL, host: "shop.example", client: ts.Client()}
	s.do("POST", "/a/orders", "{}", idempotencyKey, "k").want(t, 201, "a run 1", false)
	s.do("POST", "/b/orders", "{}", idempotencyKey, "k").wantProblem(t, 422, idempotency.CodeKeyReused)
	s.do("POST", "/b/orders", "{}", idempotencyKey, "b").want(t, 201, "b run 2", false)
}

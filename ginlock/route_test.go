package ginlock_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/testutil"
)

// A route of a group has options of its own.
func TestRoute(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		api := r.Group("/api", ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l),
			ginlock.Route("POST /api/payments/:id", ginlock.Require()),
			ginlock.Route("/api/short", ginlock.Retain(50*time.Millisecond)),
			ginlock.Route("PUT /api/short", ginlock.Retain(time.Hour))))
		for _, path := range []string{"/payments/:id", "/short", "/plain"} {
			api.POST(path, counter(&runs))
			api.PUT(path, counter(&runs))
		}
	})
	s.do("POST", "/api/payments/1", "").wantProblem(t, 400, ginlock.CodeKeyMissing)
	s.do("PUT", "/api/payments/1", "").want(t, 201, "run 1", false)
	s.do("POST", "/api/plain", "").want(t, 201, "run 2", false)
	short := func(method string) answer { return s.do(method, "/api/short", "", idempotencyKey, "k") }
	short("PUT").want(t, 201, "run 3", false)
	short("POST").want(t, 201, "run 4", false)
	until(t, func() answer { return short("POST") }, func(a answer) bool { return !a.replayed() }).want(t, 201, "run 5", false)
	short("PUT").want(t, 201, "run 3", true)
}

// A lock on the order and idempotency on the key, on one route, in either order.
func TestTwoOnOneRoute(t *testing.T) {
	t.Parallel()
	for _, lockOutside := range []bool{true, false} {
		t.Run(map[bool]string{true: "lock outside", false: "lock inside"}[lockOutside], func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			g, l := newGate(t), testutil.Locker(t)
			chain := []gin.HandlerFunc{
				ginlock.ByParam("id", ginlock.LockOnly(), ginlock.WithLocker(l)),
				ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l)),
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
			take("1", "bob").wantProblem(t, 409, ginlock.CodeLockBusy) // another key, the same order
			busy := take("1", "ann")                                   // the same key
			if want := map[bool]string{true: ginlock.CodeLockBusy, false: ginlock.CodeInFlight}[lockOutside]; busy.problem(t).Code != want {
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

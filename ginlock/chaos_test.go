package ginlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// Clients of three services hang up, come at once and come again. Meanwhile handlers fail, panic,
// stream and take their time. A request that was answered and recorded happened once, and everybody
// who got an answer got the same.
func TestManyRequests_OneEffect(t *testing.T) {
	t.Parallel()
	const keys, clients = 30, 8
	n := testutil.Redis(t)
	var effects [keys]atomic.Int64
	var runs, replays, refused atomic.Int64
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	handler := func(c *gin.Context) {
		var key int
		_, _ = fmt.Sscan(c.GetHeader(idempotencyKey), &key)
		chance := rand.New(rand.NewPCG(seed, uint64(runs.Add(1))))
		time.Sleep(time.Duration(chance.IntN(3000)) * time.Microsecond)
		switch chance.IntN(6) {
		case 0:
			idempotency.NothingDone(c.Request.Context())
			panic("boom")
		case 1:
			c.Header("Retry-After", "1")
			c.String(503, "later")
			return
		case 2:
			idempotency.NothingDone(c.Request.Context())
			_ = c.Error(fmt.Errorf("left to a writer outside"))
			return
		}
		// The effect. From here on the answer is recorded, or known to be lost.
		streams := chance.IntN(3) == 0
		if streams {
			c.Header("Content-Type", "text/event-stream")
		}
		c.String(201, "effect %d of %d", effects[key].Add(1), key)
		if streams {
			c.Writer.Flush()
		}
	}
	var services []*server
	for i := range 3 {
		l := lockerOn(t, n, core.WithTTL(time.Minute))
		opts := []idempotency.HTTPOption{idempotency.WithLocker(l)}
		if i > 0 {
			opts = append(opts, idempotency.Wait(time.Duration(i)*200*time.Millisecond))
		}
		services = append(services, serve(t, func(r *gin.Engine) { r.POST("/orders", ginlock.ByHeader(idempotencyKey, opts...), handler) }))
	}
	var all sync.WaitGroup
	for key := range keys {
		for client := range clients {
			all.Go(func() {
				chance := rand.New(rand.NewPCG(seed+1, uint64(key*clients+client)))
				for try := range 40 {
					s := services[chance.IntN(len(services))]
					ctx, cancel := context.WithCancel(context.Background())
					if try == 0 && client%3 == 0 { // it hangs up in the middle
						ctx, cancel = context.WithTimeout(ctx, time.Duration(chance.IntN(4000))*time.Microsecond)
					}
					a := s.doCtx(ctx, "POST", "/orders", "", idempotencyKey, fmt.Sprint(key))
					cancel()
					switch {
					case a.status == 201 && a.body != fmt.Sprintf("effect 1 of %d", key):
						t.Errorf("key %d was answered %v", key, a)
						return
					case a.status == 201:
						if a.replayed() {
							replays.Add(1)
						}
						return
					case a.status == 409 && a.problem(t).Code == idempotency.CodeResponseNotKept:
						refused.Add(1)
						return
					}
					time.Sleep(time.Duration(chance.IntN(5000)) * time.Microsecond)
				}
				t.Errorf("key %d has no answer after 40 tries", key)
			})
		}
	}
	all.Wait()
	for key := range effects {
		if n := effects[key].Load(); n != 1 {
			t.Errorf("key %d had %d effects", key, n)
		}
	}
	t.Logf("%d runs, %d replays, %d told that it was not kept", runs.Load(), replays.Load(), refused.Load())
	if replays.Load() == 0 || refused.Load() == 0 {
		t.Error("this was no test of replays and tombstones")
	}
}

package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

// Slow nodes, lost replies, callers that give up at any moment: when all is over nothing is held on any node, long before the TTL, and
// nothing is left in the process. And meanwhile there is one holder at a time.
func TestQuorum_NothingStaysBehindAfterAStorm(t *testing.T) { // not parallel: it looks at all goroutines
	nodes := testutil.Cluster(t, 5)
	proxies, clients := proxied(t, nodes)
	var log logs
	l := locker(t, core.Clients(clients...), core.WithNodeTimeout(100*time.Millisecond), core.WithTTL(time.Minute), log.option())
	other := locker(t, core.Clients(clients...), core.WithNodeTimeout(100*time.Millisecond), core.WithTTL(time.Minute), log.option())
	for _, l := range []*core.Locker{l, other} {
		ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { // trouble, for two nodes at a time
		for {
			p := proxies[rand.IntN(len(proxies))]
			switch rand.IntN(3) {
			case 0:
				p.late.Store(int64(rand.N(150 * time.Millisecond)))
			case 1:
				p.cut.Store(1)
			default:
				p.lose.Store(true)
			}
			select {
			case <-time.After(rand.N(100 * time.Millisecond)):
			case <-stop:
				return
			}
			p.late.Store(0)
			p.lose.Store(false)
		}
	})
	var inside [4]atomic.Int64
	outcomes := make(map[string]int)
	var mu sync.Mutex
	for i := range 16 {
		all.Go(func() {
			l := []*core.Locker{l, other}[i%2]
			for {
				select {
				case <-stop:
					return
				default:
				}
				key := rand.IntN(len(inside))
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(60*time.Millisecond))
				k, err := l.Acquire(ctx, fmt.Sprint("k", key))
				outcome := "granted"
				switch {
				case err == nil:
					if n := inside[key].Add(1); n != 1 {
						t.Errorf("%d hold key %d", n, key)
					}
					time.Sleep(rand.N(2 * time.Millisecond))
					inside[key].Add(-1)
					if err := k.Release(ctx); err != nil && !errors.Is(err, core.ErrUnavailable) {
						outcome = "release: " + err.Error()
					}
				case errors.Is(err, core.ErrTaken):
					outcome = "taken"
				case errors.Is(err, core.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
					outcome = "unavailable"
				default:
					t.Errorf("Acquire: %v", err)
				}
				cancel()
				mu.Lock()
				outcomes[outcome]++
				mu.Unlock()
			}
		})
	}
	time.Sleep(5 * time.Second)
	close(stop)
	all.Wait()
	for _, p := range proxies {
		p.late.Store(0)
		p.lose.Store(false)
		p.cut.Store(0)
	}
	t.Log(outcomes, "clean-ups dropped:", log.count("too many clean-ups"), "left out:", log.count(leftOut))
	for i, n := range nodes {
		client := n.Client()
		for key := range inside {
			eventually(t, fmt.Sprintf("node %d forgets key %d", i+1, key), func() bool {
				return client.Exists(t.Context(), fmt.Sprintf("onelane:{k%d}", key)).Val() == 0
			})
		}
	}
	eventually(t, "no lease is remembered", func() bool { return core.Asked(core.BackendOf(l))+core.Asked(core.BackendOf(other)) == 0 })
	eventually(t, "no goroutine of the quorum is left", func() bool {
		stacks := make([]byte, 4<<20)
		text := string(stacks[:runtime.Stack(stacks, true)])
		return !strings.Contains(text, "core.(*quorum)") && !strings.Contains(text, "core.(*redisBackend)")
	})
}

// The request to acquire is under way for longer than its caller waits, and the clean-up, on another connection, overtakes it.
func TestCleanUp_ThatOvertakesTheRequest(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	client := redis.NewClient(&redis.Options{Addr: p.Addr().String(), MinIdleConns: 2})
	t.Cleanup(func() { _ = client.Close() })
	l := locker(t, core.Clients(client))
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	direct := node.Client()
	p.delay.Store(int64(100 * time.Millisecond))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, "k", core.WithTTL(time.Minute))
	want(t, "Acquire", err, context.DeadlineExceeded)
	eventually(t, "the request arrives", func() bool { return direct.Exists(t.Context(), "onelane:{k}:fence").Val() == 1 })
	eventually(t, "what it set is released", func() bool { return direct.Exists(t.Context(), "onelane:{k}").Val() == 0 })
}

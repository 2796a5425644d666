package redisbackend_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
)

// brokenPool loses each reply until it is mended. Then it counts the calls.
type brokenPool struct {
	redsyncredis.Pool
	mended atomic.Bool
	calls  atomic.Int64
}

func (p *brokenPool) Get(context.Context) (redsyncredis.Conn, error) {
	return brokenConn{pool: p}, nil
}

type brokenConn struct {
	redsyncredis.Conn
	pool *brokenPool
}

func (c brokenConn) Close() error { return nil }

func (c brokenConn) Eval(*redsyncredis.Script, ...any) (any, error) {
	if !c.pool.mended.Load() {
		return nil, errors.New("the reply was lost")
	}
	c.pool.calls.Add(1)
	return []any{int64(1), int64(0)}, nil
}

// closing makes a Locker on broken pools, fails an attempt, and closes it after mend was called.
func closing(t *testing.T, nodes int, mend func(p *brokenPool)) (pools []*brokenPool, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var all []redsyncredis.Pool
		for range nodes {
			p := new(brokenPool)
			pools, all = append(pools, p), append(all, p)
		}
		l := locker(t, redisbackend.Pools(all...), core.WithOutageWait(0))
		_, err := l.TryAcquire(t.Context(), "k")
		want(t, "TryAcquire", err, core.ErrUnavailable)
		synctest.Wait()
		for _, p := range pools {
			mend(p)
		}
		began := time.Now()
		ok(t, "Close", l.Close())
		took = time.Since(began)
	})
	return pools, took
}

func TestClose_CleansUp(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		pools, _ := closing(t, nodes, func(p *brokenPool) { p.mended.Store(true) })
		for i, p := range pools {
			if p.calls.Load() == 0 {
				t.Errorf("%d nodes: nothing was cleaned up on node %d", nodes, i)
			}
		}
	}
}

// The nodes of a quorum have one second together.
func TestClose_BrokenNodes(t *testing.T) {
	t.Parallel()
	if _, took := closing(t, 3, func(*brokenPool) {}); took != time.Second {
		t.Errorf("Close took %v, want 1s", took)
	}
}

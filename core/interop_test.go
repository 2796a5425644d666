package core_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/redigo"
	redigoredis "github.com/gomodule/redigo/redis"
	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// redigoPool is a redsync pool on redigo, to show that any of them works.
func redigoPool(t testing.TB, n *testutil.Node) redsyncredis.Pool {
	p := &redigoredis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redigoredis.Conn, error) {
		return redigoredis.DialContext(ctx, "tcp", n.Addr())
	}}
	t.Cleanup(func() { _ = p.Close() })
	return redigo.NewPool(p)
}

func TestBackend_Redigo(t *testing.T) {
	t.Parallel()
	b := core.Pools(redigoPool(t, testutil.Redis(t)))
	t.Cleanup(func() { ok(t, "Close", b.(io.Closer).Close()) })
	testutil.TestBackend(t, func(*testing.T) core.Backend { return b })
}

func TestBackend_RedigoQuorum(t *testing.T) {
	t.Parallel()
	var pools []redsyncredis.Pool
	for _, n := range testutil.Cluster(t, 3) {
		pools = append(pools, redigoPool(t, n))
	}
	b, err := core.Open(core.Pools(pools...), patient)
	ok(t, "Open", err)
	t.Cleanup(func() { ok(t, "Close", b.(io.Closer).Close()) })
	testutil.TestBackend(t, func(*testing.T) core.Backend { return b })
}

// askedPool counts how often a connection is asked for with a context that is done.
type askedPool struct {
	redsyncredis.Pool
	gets atomic.Int64
}

func (p *askedPool) Get(ctx context.Context) (redsyncredis.Conn, error) {
	if ctx.Err() != nil {
		p.gets.Add(1)
	}
	return p.Pool.Get(ctx)
}

// What ignores contexts, as redigo's Eval does, is not asked for a caller that has gone: a quick answer would be taken for a lock.
func TestPools_NothingIsSentForADoneContext(t *testing.T) {
	t.Parallel()
	p := &askedPool{Pool: redigoPool(t, testutil.Redis(t))}
	b := core.Pools(p)
	defer func() { ok(t, "Close", b.(io.Closer).Close()) }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Acquire(ctx, "k", "owner", time.Minute)
	want(t, "Acquire", err, context.Canceled)
	time.Sleep(200 * time.Millisecond) // a call that nobody waits for
	if n := p.gets.Load(); n != 0 {
		t.Errorf("%d connections were asked for", n)
	}
}

// A key locked here is taken for a redsync.Mutex of the same name, and the other way round, on one Redis and on a quorum.
func TestInterop_WithRedsync(t *testing.T) {
	t.Parallel()
	for name, pool := range map[string]func(testing.TB, *testutil.Node) redsyncredis.Pool{
		"go-redis": func(_ testing.TB, n *testutil.Node) redsyncredis.Pool { return n.Pool() },
		"redigo":   redigoPool,
	} {
		for of, masters := range map[string]int{" on one Redis": 1, " on a quorum": 3} {
			t.Run(name+of, func(t *testing.T) {
				t.Parallel()
				var ours, theirs []redsyncredis.Pool
				for _, n := range testutil.Cluster(t, masters) {
					ours, theirs = append(ours, pool(t, n)), append(theirs, pool(t, n))
				}
				l := locker(t, core.Pools(ours...), core.WithPrefix(""), patient)
				mutex := redsync.New(theirs...).NewMutex("stock:42", redsync.WithTries(1), redsync.WithTimeoutFactor(0.5))

				ok(t, "redsync's Lock", mutex.Lock())
				_, err := l.TryAcquire(t.Context(), "stock:42")
				want(t, "TryAcquire", err, core.ErrTaken)
				var taken *core.TakenError
				if errors.As(err, &taken); taken.Holder != mutex.Value() {
					t.Errorf("the holder is %q, want redsync's value %q", taken.Holder, mutex.Value())
				}
				got := make(chan *core.Lock, 1)
				go func() { // its release tells nobody
					k, err := l.Acquire(context.Background(), "stock:42")
					if err != nil {
						t.Error(err)
					}
					got <- k
				}()
				time.Sleep(50 * time.Millisecond)
				if done, err := mutex.Extend(); !done || err != nil {
					t.Errorf("redsync's Extend while somebody waits here: %v, %v", done, err)
				}
				_, err = mutex.Unlock()
				ok(t, "redsync's Unlock", err)

				k := <-got
				if err := mutex.Lock(); err == nil {
					t.Error("redsync took a key that is held here")
				}
				ok(t, "Extend", k.Extend(t.Context(), time.Minute))
				ok(t, "Release", k.Release(t.Context()))
				ok(t, "redsync's Lock", mutex.Lock())
			})
		}
	}
}

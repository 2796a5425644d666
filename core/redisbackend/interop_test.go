package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/redigo"
	redigoredis "github.com/gomodule/redigo/redis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// redigoPool is a redsync pool on redigo.
func redigoPool(t testing.TB, n *testutil.Node) redsyncredis.Pool {
	p := &redigoredis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redigoredis.Conn, error) {
		return redigoredis.DialContext(ctx, "tcp", n.Addr())
	}}
	t.Cleanup(func() { _ = p.Close() })
	return redigo.NewPool(p)
}

func TestBackend_Redigo(t *testing.T) {
	t.Parallel()
	b := open(t, pooled(redigoPool(t, testutil.Redis(t))))
	backendtest.TestSealer(t, func(*testing.T) core.Backend { return b })
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

// redigo's Eval ignores contexts: a quick answer could be taken for a lock of a caller that has gone.
func TestPools_DoneContextIsNotAsked(t *testing.T) {
	t.Parallel()
	p := &askedPool{Pool: redigoPool(t, testutil.Redis(t))}
	b := open(t, redisbackend.Pools(p))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Acquire(ctx, core.Request{Key: "k", Owner: "owner", TTL: time.Minute})
	want(t, "Acquire", err, context.Canceled)
	if n := p.gets.Load(); n != 0 {
		t.Errorf("%d connections were asked for", n)
	}
}

// A key locked here is taken for a redsync.Mutex of the same name, and the other way round.
func TestInterop_WithRedsync(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	for name, b := range map[string]core.Opener{
		"client": one(node.Client()), "go-redis": pooled(node.Pool()), "redigo": pooled(redigoPool(t, node)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := locker(t, b, core.WithPrefix(""))
			mutex := redsync.New(node.Pool()).NewMutex("stock:"+name, redsync.WithTries(1), redsync.WithTimeoutFactor(0.5))

			ok(t, "redsync's Lock", mutex.Lock())
			_, err := l.TryAcquire(t.Context(), mutex.Name())
			want(t, "TryAcquire", err, core.ErrTaken)
			var taken *core.TakenError
			if errors.As(err, &taken); !strings.Contains(taken.Holder, "another program") || taken.RetryAfter <= 0 {
				t.Errorf("the holder is %q for %v", taken.Holder, taken.RetryAfter)
			}
			got := acquiring(t, l, mutex.Name()) // redsync's release tells nobody
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

// A value of another program may be long, or a secret. Nobody sees more than its size.
func TestInterop_ForeignValueHidden(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l := locker(t, one(client), core.WithPrefix(""))
	hidden := func(what string, shown ...any) {
		t.Helper()
		text := fmt.Sprintf("%+v", shown)
		if len(text) > 1000 || strings.Contains(text, "s3cret") || !strings.Contains(text, "bytes") {
			t.Errorf("%s shows %d bytes: %.100s", what, len(text), text)
		}
	}
	for _, value := range []string{"token=s3cret;" + strings.Repeat("x", 300_000), "s3cret#s3cret", "a/s3cret"} {
		key := fmt.Sprint("session:", len(value))
		ok(t, "SET", client.Set(t.Context(), key, value, 0).Err())
		_, err := l.TryAcquire(t.Context(), key)
		want(t, "TryAcquire", err, core.ErrTaken)
		taken, _ := errors.AsType[*core.TakenError](err)
		hidden("TryAcquire", err, *taken)
		st, err := l.Inspect(t.Context(), key)
		ok(t, "Inspect", err)
		hidden("Inspect", st)
		want(t, "Revoke of another owner", l.Revoke(t.Context(), key, st.Owner+"x"), core.ErrLost)
		ok(t, "Revoke", l.Revoke(t.Context(), key, st.Owner))

		k := acquire(t, l, key, core.WithMaxHold(0))
		ok(t, "SET", client.Set(t.Context(), key, value, 0).Err())
		err = k.Release(t.Context())
		want(t, "Release", err, core.ErrLost)
		hidden("Release", err)
	}
	ok(t, "SET", client.Set(t.Context(), "orphan", "a/s3cret;60000", time.Second).Err())
	_, err := l.TryAcquire(t.Context(), "orphan")
	want(t, "TryAcquire", err, core.ErrOrphaned)
	hidden("an orphan's error", err.Error())
}

// An error that Redis answers is an answer, even from a client whose errors have no type.
func TestQuorum_AnswersOfRedigoExcludeNoNode(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	var pools []redsyncredis.Pool
	for _, n := range nodes {
		pools = append(pools, redigoPool(t, n))
	}
	c := redisbackend.Pools(pools...)
	c.NewInstallation, c.NodeTimeout = true, 5*time.Second
	l := locker(t, c)
	admin := nodes[0].Client()
	ok(t, "LPUSH", admin.LPush(t.Context(), "onelane:{foreign}", "x").Err())
	for range 3 {
		ok(t, "Release", acquire(t, l, "foreign").Release(t.Context())) // by the other two
	}
	time.Sleep(100 * time.Millisecond) // the first node's answers come after a majority's
	k := acquire(t, l, "other", core.WithMaxHold(0), core.WithTTL(30*time.Second))
	eventually(t, "the first node has the lock, too", func() bool {
		return admin.Get(t.Context(), "onelane:{other}").Val() == redisbackend.QuorumMark+k.Owner()
	})
}

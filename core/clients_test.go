package core_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

// A Ring gives the keys of a master that does not answer to another one, where they are free.
func TestClients_ARingIsRefused(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": testutil.Redis(t).Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	if _, err := core.New(core.Clients(ring)); err == nil || !strings.Contains(err.Error(), "Ring") {
		t.Errorf("New on a Ring: %v", err)
	}
}

func TestClients_ANilPointerIsAnError(t *testing.T) {
	t.Parallel()
	for _, c := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if _, err := core.New(core.Clients(c)); err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("New on %T(nil): %v", c, err)
		}
	}
}

// A cluster client retries by itself: that the key is gone then is its own work.
func TestLostReply_OfAClientThatRetriesByItself(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	client := redis.NewClusterClient(&redis.ClusterOptions{PoolSize: 1, ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: p.Addr().String()}}}}, nil
	}})
	t.Cleanup(func() { _ = client.Close() })
	l := locker(t, core.Clients(client))
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	k := acquire(t, l, "k")
	p.cut.Store(1)
	ok(t, "Release", k.Release(t.Context()))
	k = acquire(t, l, "deleted")
	ok(t, "DEL", node.Client().Del(t.Context(), "onelane:{deleted}").Err())
	want(t, "Release without a retry", k.Release(t.Context()), core.ErrLost)
}

// oddPool answers some of the calls in its own way.
type oddPool struct {
	redsyncredis.Pool
	calls  atomic.Int64
	before func(call int64) // before it gets a connection
	eval   func(call int64, eval func() (any, error)) (any, error)
}

func (p *oddPool) Get(context.Context) (redsyncredis.Conn, error) {
	call := p.calls.Add(1)
	if p.before != nil {
		p.before(call)
	}
	c, err := p.Pool.Get(context.Background())
	return oddConn{c, p, call}, err
}

type oddConn struct {
	redsyncredis.Conn
	pool *oddPool
	call int64
}

func (c oddConn) Eval(s *redsyncredis.Script, args ...any) (any, error) {
	eval := func() (any, error) { return c.Conn.Eval(s, args...) }
	if c.pool.eval == nil {
		return eval()
	}
	return c.pool.eval(c.call, eval)
}

// serverError is a server's answer that it has not run the script.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// The first try had its effect, and its reply was lost; the second is refused: what the first left is cleaned up.
func TestLostReply_ThenRefusedIsCleanedUp(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, core.Pools(&oddPool{Pool: node.Pool(), eval: func(call int64, eval func() (any, error)) (any, error) {
		switch call {
		case 1:
			_, err := eval()
			return nil, errors.Join(io.EOF, err)
		case 2:
			return nil, serverError("ERR max number of clients reached")
		default:
			return eval()
		}
	}}))
	_, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
	want(t, "Acquire", err, core.ErrUnavailable)
	direct := locker(t, core.Clients(node.Client()))
	eventually(t, "the key is free", func() bool { return status(t, direct, "k") == core.Free })
}

// A call that was given up has its effect when the TTL has passed that it asked for: what it leaves is cleaned up too.
func TestLateCall_IsCleanedUpWheneverItReturns(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	goOn, set := make(chan struct{}), make(chan struct{})
	l := locker(t, core.Pools(&oddPool{Pool: node.Pool(), eval: func(call int64, eval func() (any, error)) (any, error) {
		if call != 1 {
			return eval()
		}
		defer close(set)
		<-goOn
		_, _ = eval() // its reply is lost
		_ = node.Client().PExpire(context.Background(), "onelane:{k}", time.Hour).Err()
		return nil, io.EOF
	}}), core.WithNodeTimeout(20*time.Millisecond))
	_, err := l.Acquire(t.Context(), "k", core.WithTTL(100*time.Millisecond))
	want(t, "Acquire", err, core.ErrUnavailable)
	time.Sleep(200 * time.Millisecond) // past the TTL
	close(goOn)
	<-set
	direct := locker(t, core.Clients(node.Client()))
	eventually(t, "the key is free", func() bool { return status(t, direct, "k") == core.Free })
}

// A key in its last millisecond is not one without expiry, which is looked at a second later.
func TestTaken_InItsLastMillisecondSaysSo(t *testing.T) {
	t.Parallel()
	answer := []any{int64(2), "other", int64(0)}
	l := locker(t, core.Pools(&oddPool{Pool: testutil.Redis(t).Pool(), eval: func(int64, func() (any, error)) (any, error) {
		return answer, nil
	}}))
	_, err := l.TryAcquire(t.Context(), "k")
	var taken *core.TakenError
	if !errors.As(err, &taken) || taken.RetryAfter != time.Millisecond {
		t.Errorf("PTTL 0: %v, RetryAfter %v", err, taken.RetryAfter)
	}
	answer[2] = int64(-1)
	_, err = l.TryAcquire(t.Context(), "k")
	if !errors.As(err, &taken) || taken.RetryAfter != 0 {
		t.Errorf("PTTL -1: %v, RetryAfter %v", err, taken.RetryAfter)
	}
}

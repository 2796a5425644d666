package redisbackend_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// oddPool answers some of the calls in its own way.
type oddPool struct {
	redsyncredis.Pool
	calls atomic.Int64
	eval  func(call int64, eval func() (any, error)) (any, error)
}

func (p *oddPool) Get(context.Context) (redsyncredis.Conn, error) {
	call := p.calls.Add(1)
	c, err := p.Pool.Get(context.Background())
	return oddConn{c, p, call}, err
}

type oddConn struct {
	redsyncredis.Conn
	pool *oddPool
	call int64
}

func (c oddConn) Eval(s *redsyncredis.Script, args ...any) (any, error) {
	return c.pool.eval(c.call, func() (any, error) { return c.Conn.Eval(s, args...) })
}

// serverError is a server's answer.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// The first try had its effect, and its reply was lost. The second one is refused.
func TestLostReply_ThenRefused(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, redisbackend.Pools(&oddPool{Pool: node.Pool(), eval: func(call int64, eval func() (any, error)) (any, error) {
		switch call {
		case 1:
			_, err := eval()
			return nil, errors.Join(io.EOF, err)
		case 2:
			return nil, serverError("READONLY You can't write against a read only replica.")
		default:
			return eval()
		}
	}}), core.WithOutageWait(0))
	_, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
	want(t, "Acquire", err, core.ErrUnavailable)
	direct := locker(t, one(node.Client()))
	eventually(t, "the key is free", func() bool { return status(t, direct, "k") == core.Free })
}

// A proxy that answers with its own error may have passed the call on.
func TestProxyError_IsNoProofThatNothingRan(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, redisbackend.Pools(&oddPool{Pool: node.Pool(), eval: func(call int64, eval func() (any, error)) (any, error) {
		v, err := eval()
		if call == 1 {
			return nil, serverError("ERR upstream failure")
		}
		return v, err
	}}), core.WithOutageWait(0))
	_, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
	want(t, "Acquire", err, core.ErrUnavailable)
	direct := locker(t, one(node.Client()))
	eventually(t, "the key is free", func() bool { return status(t, direct, "k") == core.Free })
}

// A call that was given up has its effect after the TTL that it asked for.
func TestLateCall_IsCleanedUp(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	goOn, set := make(chan struct{}), make(chan struct{})
	l := locker(t, redisbackend.Config{NodeTimeout: 20 * time.Millisecond, Pools: []redsyncredis.Pool{&oddPool{Pool: node.Pool(),
		eval: func(call int64, eval func() (any, error)) (any, error) {
			if call != 1 {
				return eval()
			}
			defer close(set)
			<-goOn
			_, _ = eval() // its reply is lost
			_ = node.Client().PExpire(context.Background(), "onelane:{k}", time.Hour).Err()
			return nil, io.EOF
		}}}}, core.WithOutageWait(0))
	_, err := l.Acquire(t.Context(), "k", core.WithTTL(10*time.Millisecond))
	want(t, "Acquire", err, core.ErrUnavailable)
	time.Sleep(20 * time.Millisecond) // longer than the TTL
	close(goOn)
	<-set
	direct := locker(t, one(node.Client()))
	eventually(t, "the key is free", func() bool { return status(t, direct, "k") == core.Free })
}

// Close lets a call go on that was given up, and then cleans up after it.
func TestClose_AwaitsLateCalls(t *testing.T) {
	t.Parallel()
	var got core.Status
	for range 3 { // Close waits for a second, and a busy machine may let the call go on later
		if got = afterLateCall(t); got == core.Free {
			return
		}
	}
	t.Errorf("after Close the key is %v, want free", got)
}

// afterLateCall closes a Locker while a call goes on that was given up, and returns what its key is then.
func afterLateCall(t *testing.T) core.Status {
	node := testutil.Redis(t)
	goOn, set := make(chan struct{}), make(chan struct{})
	l := locker(t, redisbackend.Config{NodeTimeout: 100 * time.Millisecond, Pools: []redsyncredis.Pool{&oddPool{Pool: node.Pool(),
		eval: func(call int64, eval func() (any, error)) (any, error) {
			if call != 1 {
				return eval()
			}
			defer close(set)
			<-goOn
			return eval()
		}}}}, core.WithOutageWait(0))
	_, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Hour))
	want(t, "Acquire", err, core.ErrUnavailable)
	time.AfterFunc(200*time.Millisecond, func() { close(goOn) })
	ok(t, "Close", l.Close())
	<-set
	return status(t, locker(t, one(node.Client())), "k")
}

// A key in its last millisecond is not one without expiry.
func TestTaken_InItsLastMillisecond(t *testing.T) {
	t.Parallel()
	answer := []any{int64(2), "other", int64(0)}
	l := locker(t, pooled(&oddPool{Pool: testutil.Redis(t).Pool(), eval: func(int64, func() (any, error)) (any, error) {
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

// Calls that a pool ignores forever are bounded.
func TestPools_StuckCallsAreBounded(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	p := &oddPool{Pool: testutil.Redis(t).Pool(), eval: func(int64, func() (any, error)) (any, error) {
		<-stuck
		return nil, io.EOF
	}}
	defer close(stuck)
	b := open(t, redisbackend.Config{Pools: []redsyncredis.Pool{p}, NodeTimeout: time.Millisecond})
	for range 200 {
		_, err := b.Inspect(t.Context(), "k")
		want(t, "Inspect", err, core.ErrUnavailable)
	}
	if n := p.calls.Load(); n > 64 {
		t.Errorf("%d calls are stuck", n)
	}
}

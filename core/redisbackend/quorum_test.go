package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// quorumOf is a quorum whose nodes do not abstain and have time on a busy machine.
func quorumOf(nodes testutil.Nodes) redisbackend.Config {
	c := redisbackend.New(nodes.Clients()...)
	c.NewInstallation, c.NodeTimeout = true, 5*time.Second
	return c
}

// openQuorum opens a Backend that is closed with the test.
func openQuorum(t testing.TB, c redisbackend.Config, ttl time.Duration) core.Backend {
	t.Helper()
	b, err := c.Open(core.Environment{
		TTL: ttl, Logger: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter(""),
	})
	ok(t, "Open", err)
	t.Cleanup(func() { ok(t, "Close", b.Close()) })
	return b
}

func TestQuorum_Backend(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		nodes := testutil.Cluster(t, n)
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			backendtest.TestBackend(t, func(t *testing.T) core.Backend {
				return openQuorum(t, quorumOf(nodes), time.Minute)
			})
		})
	}
}

func TestQuorum_TokensIncrease(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	l := locker(t, quorumOf(nodes))
	var last uint64
	for round := range 9 {
		// Each holder has another majority.
		down := nodes[(round+2)%3]
		down.Stop()
		k := acquire(t, l, "k")
		token, err := k.Token(t.Context())
		ok(t, "Token", err)
		if token <= last {
			t.Errorf("round %d: token %d after %d", round, token, last)
		}
		last = token
		ok(t, "Release", k.Release(t.Context()))
		down.Cont()
	}
}

func TestQuorum_OneHolderOfMany(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	var lockers []*core.Locker
	for range 3 {
		lockers = append(lockers, locker(t, quorumOf(nodes)))
	}
	var all sync.WaitGroup
	n := 0
	var last uint64
	for i := range 9 {
		all.Go(func() {
			for range 10 {
				k, err := lockers[i%3].Acquire(t.Context(), "hot")
				if err != nil {
					t.Error(err)
					return
				}
				n++
				token, err := k.Token(t.Context())
				if err != nil || token <= last {
					t.Errorf("token %d after %d, %v", token, last, err)
				}
				last = token
				if err := k.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n != 90 {
		t.Errorf("counted %d, want 90", n)
	}
}

// In every round of callers that do not wait, one gets the key. TryAcquire tries a few times: on a
// busy machine a round may split the votes in all of them.
func TestQuorum_TryAcquireHasAWinner(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ nodes, contenders int }{{3, 2}, {3, 3}, {3, 8}, {5, 3}, {5, 8}} {
		nodes := testutil.Cluster(t, c.nodes)
		lockers := make([]*core.Locker, c.contenders)
		for i := range lockers {
			lockers[i] = locker(t, quorumOf(nodes))
			ok(t, "Release", acquire(t, lockers[i], "warm").Release(t.Context()))
		}
		split := 0
		for round := range 40 {
			var won atomic.Int64
			var all sync.WaitGroup
			begin := make(chan struct{})
			for _, l := range lockers {
				all.Go(func() {
					<-begin
					_, err := l.TryAcquire(t.Context(), fmt.Sprint("k", round))
					if err == nil {
						won.Add(1)
					} else if !errors.Is(err, core.ErrTaken) {
						t.Error(err)
					}
				})
			}
			close(begin)
			all.Wait()
			if won.Load() == 0 && split < 4 {
				split++
			} else if won.Load() != 1 {
				t.Errorf("%d nodes, %d contenders, round %d: %d won, want one", c.nodes, c.contenders, round, won.Load())
			}
		}
	}
}

// A client whose clock is ahead gets no new key, so that tokens cannot go back when nodes forget
// it.
func TestQuorum_WrongClockGetsNoNewKey(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	right, wrong := openQuorum(t, quorumOf(nodes), time.Minute), openQuorum(t, quorumOf(nodes), time.Minute)
	redisbackend.SetQuorumClock(wrong, func() time.Time { return time.Now().Add(10 * time.Minute) })
	request := func(owner string) core.Request {
		return core.Request{Key: "k", Owner: owner, TTL: time.Minute}
	}
	_, err := wrong.Acquire(t.Context(), request("a/1"))
	want(t, "Acquire of a new key", err, core.ErrUnavailable)
	if !strings.Contains(err.Error(), "this process's clock is") {
		t.Errorf("the error does not name the clock: %v", err)
	}
	g, err := right.Acquire(t.Context(), request("b/1"))
	ok(t, "Acquire with the right clock", err)
	_, err = right.Release(t.Context(), g)
	ok(t, "Release", err)
	next, err := wrong.Acquire(t.Context(), request("a/2"))
	ok(t, "Acquire of a known key", err)
	if next.Token <= g.Token || next.Token > g.Token+1000*256 {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
}

func TestQuorum_LargeSeal(t *testing.T) {
	t.Parallel()
	c := quorumOf(testutil.Cluster(t, 3))
	c.NodeTimeout = time.Minute
	l := locker(t, c, core.WithTTL(5*time.Minute))
	value := make([]byte, 16<<20)
	ok(t, "Seal", acquire(t, l, "k").Seal(t.Context(), value, time.Minute))
	for range 3 {
		_, err := l.TryAcquire(t.Context(), "k")
		var sealed *core.SealedError
		if !errors.As(err, &sealed) || len(sealed.Value) != len(value) {
			t.Fatalf("got %v", err)
		}
	}
}

// A slow node keeps what a majority keeps, also if the caller cancels its context meanwhile.
func TestQuorum_SlowNodeKeepsUp(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	l := locker(t, quorumOf(nodes), core.WithTTL(time.Minute), core.WithMaxHold(0))
	there := nodes[2].Client()
	k := acquire(t, l, "k")
	name := "onelane:{k}"
	for _, n := range nodes {
		eventually(t, "all nodes granted", func() bool { return n.Client().Exists(t.Context(), name).Val() == 1 })
	}

	nodes[2].Stop()
	ctx, cancel := context.WithCancel(t.Context())
	ok(t, "Extend", k.Extend(ctx, time.Hour))
	cancel()
	nodes[2].Cont()
	eventually(t, "the slow node extended", func() bool { return there.PTTL(t.Context(), name).Val() > time.Minute })

	nodes[2].Stop()
	ctx, cancel = context.WithCancel(t.Context())
	ok(t, "Seal", k.Seal(ctx, []byte("answer"), time.Hour))
	cancel()
	nodes[2].Cont()
	eventually(t, "the slow node has the seal", func() bool {
		return strings.HasSuffix(there.Get(t.Context(), name+":accepted").Val(), ":answer")
	})
}

// One Redis that fails or forgets would have two votes.
func TestQuorum_OneRedisTwice(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	_, port, err := net.SplitHostPort(nodes[0].Addr())
	ok(t, "SplitHostPort", err)
	again := redis.NewClient(&redis.Options{Addr: net.JoinHostPort("localhost", port)})
	t.Cleanup(func() { _ = again.Close() })
	c := redisbackend.New(nodes[0].Client(), nodes[1].Client(), again)
	c.NewInstallation = true
	l := locker(t, c)
	eventually(t, "it is noticed by another name of the host", func() bool {
		k, err := l.TryAcquire(t.Context(), "k")
		if err == nil {
			_ = k.Release(t.Context())
			return false
		}
		return strings.Contains(err.Error(), "nodes 1 and 3 of the quorum are one Redis")
	})
	_, err = l.Acquire(t.Context(), "k")
	want(t, "Acquire", err, core.ErrUnavailable)
}

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
	c.NewInstallation, c.NodeTimeout, c.LongestTTL = true, 5*time.Second, 2*time.Hour
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

// A caller whose clock is off gets no key, not even a known one: tokens could go back when nodes
// forget what they promised.
func TestQuorum_WrongClock(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	right := openQuorum(t, quorumOf(nodes), time.Minute)
	g, err := right.Acquire(t.Context(), attempt("k", time.Minute, 0))
	ok(t, "Acquire with the right clock", err)
	_, err = right.Release(t.Context(), g)
	ok(t, "Release", err)
	for _, off := range []time.Duration{time.Hour, 2500 * time.Millisecond, -2500 * time.Millisecond, -time.Hour} {
		wrong := openQuorum(t, quorumOf(nodes), time.Minute)
		redisbackend.SetQuorumClock(wrong, func() time.Time { return time.Now().Add(off) })
		for _, key := range []string{"k", "new"} {
			_, err := wrong.Acquire(t.Context(), attempt(key, time.Minute, 0))
			want(t, fmt.Sprint("Acquire of ", key, ", ", off), err, core.ErrUnavailable)
			if !strings.Contains(err.Error(), "this process's clock") {
				t.Errorf("the error does not name the clock: %v", err)
			}
		}
	}
}

// Two callers whose clocks are almost 4 s apart take turns: tokens increase.
func TestQuorum_TokensBetweenClocks(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	ahead, behind := openQuorum(t, quorumOf(nodes), time.Minute), openQuorum(t, quorumOf(nodes), time.Minute)
	redisbackend.SetQuorumClock(ahead, func() time.Time { return time.Now().Add(1900 * time.Millisecond) })
	redisbackend.SetQuorumClock(behind, func() time.Time { return time.Now().Add(-1900 * time.Millisecond) })
	var last uint64
	for i := range 6 {
		b := []core.Backend{ahead, behind}[i%2]
		var g core.Grant
		eventually(t, "Acquire", func() (granted bool) { // a node may still have to hear of the release
			var err error
			g, err = b.Acquire(t.Context(), attempt("k", time.Minute, 0))
			return err == nil
		})
		if g.Token <= last || g.Token%256 != 0 {
			t.Errorf("token %d after %d", g.Token, last)
		}
		last = g.Token
		release(t, b, g)
	}
}

// A node promises a number only to the owner, and no number that is far ahead of its clock. A promise
// outlives its number by a minute (rules 3 and 5).
func TestQuorum_Promise(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	b, client := openQuorum(t, quorumOf(nodes), time.Minute), nodes[0].Client()
	g := grantedByAll(t, b, nodes, "k")
	granted := g.Token / 256
	ahead := func(d time.Duration) uint64 { return uint64(time.Now().Add(d).UnixMicro()) }
	for _, c := range []struct {
		what, owner string
		number      uint64
		accepted    bool
	}{
		{"another owner", "somebody/1", granted + 1, false},
		{"far ahead", g.Owner, ahead(3 * time.Second), false},
		{"a larger number", g.Owner, ahead(1900 * time.Millisecond), true},
		{"a smaller number", g.Owner, granted, true},
	} {
		before := client.Get(t.Context(), "{k}:promise").Val()
		promised, accepted := redisbackend.PromiseOnNode(b, 0, "k", c.owner, c.number)
		if accepted != c.accepted || accepted && promised < c.number {
			t.Errorf("%s: %v, promised %d", c.what, accepted, promised)
		}
		want := before
		if accepted {
			want = fmt.Sprint(max(c.number, promised))
		}
		if now := client.Get(t.Context(), "{k}:promise").Val(); now != want {
			t.Errorf("%s: the node promised %s, want %s", c.what, now, want)
		}
	}
	number, err := client.Get(t.Context(), "{k}:promise").Int64()
	ok(t, "GET", err)
	left := client.PTTL(t.Context(), "{k}:promise").Val()
	if until := time.Until(time.UnixMicro(number)); left < until+time.Minute-100*time.Millisecond {
		t.Errorf("the promise ends in %v, its number in %v", left, until)
	}
}

// A holder that was revoked does not take the key again, and its Extend says so.
func TestQuorum_Revoke(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	holder, operator := locker(t, quorumOf(nodes), core.WithTTL(time.Minute)), locker(t, quorumOf(nodes))
	k := acquire(t, holder, "k")
	eventually(t, "all nodes granted", func() bool { return leases(t, nodes, "onelane:{k}") == len(nodes) })
	ok(t, "Revoke", operator.Revoke(t.Context(), "k", k.Owner()))
	eventually(t, "no node has the lease", func() bool { return leases(t, nodes, "onelane:{k}") == 0 })
	want(t, "Extend", k.Extend(t.Context(), time.Minute), core.ErrLost)
	if n := leases(t, nodes, "onelane:{k}"); n > 0 {
		t.Errorf("%d nodes have the lease again", n)
	}
	next := acquire(t, operator, "k")
	if token(t, next) <= 0 {
		t.Error("no token")
	}
	ok(t, "Release", next.Release(t.Context()))
}

// Masters forget leases of at most LongestTTL while they have no vote. So longer ones are refused.
func TestQuorum_LongestTTL(t *testing.T) {
	t.Parallel()
	c := quorumOf(testutil.Cluster(t, 3))
	c.LongestTTL = 20 * time.Second
	_, err := core.New(c, core.WithTTL(21*time.Second))
	names(t, "core.New", err)
	l := locker(t, c)
	_, err = l.Acquire(t.Context(), "k", core.WithTTL(21*time.Second))
	names(t, "Acquire", err)
	k := acquire(t, l, "k")
	names(t, "Extend", k.Extend(t.Context(), 21*time.Second))
	ok(t, "Extend", k.Extend(t.Context(), 20*time.Second))
	ok(t, "Release", k.Release(t.Context()))
}

// names checks that an error says what to do about a TTL that is too long.
func names(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "LongestTTL") || errors.Is(err, core.ErrUnavailable) || errors.Is(err, core.ErrLost) {
		t.Errorf("%s: %v", what, err)
	}
}

// A slow node keeps what a majority keeps, even if the caller cancels its context meanwhile.
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

package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// opened makes a Backend of one that needs a Locker's options.
func opened(t *testing.T, b core.Backend, opts ...core.Option) core.Backend {
	t.Helper()
	b, err := core.Open(b, opts...)
	ok(t, "open", err)
	return b
}

func TestBackend_Pipelined(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	testutil.TestBackend(t, func(t *testing.T) core.Backend { return opened(t, core.Clients(client), core.Pipelined()) })
}

func TestPipelined_IsRefusedWhereItDoesNothing(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{node.Addr()}})
	t.Cleanup(func() { _ = cluster.Close() })
	for name, b := range map[string]core.Backend{
		"a pool": core.Pools(node.Pool()), "a cluster": core.Clients(cluster), "memory": testutil.Memory(),
		"a quorum of pools": core.Pools(node.Pool(), node.Pool(), node.Pool()),
	} {
		if _, err := core.New(b, core.Pipelined()); err == nil || !strings.Contains(err.Error(), "core.Clients") {
			t.Errorf("Pipelined on %s: %v", name, err)
		}
	}
}

// sent is how many pipelines and how many single commands a client has sent.
func sent(c *redis.Client) (pipelines, alone uint32) {
	s := c.PoolStats()
	return s.PipelineStats.Hits + s.PipelineStats.Misses, s.Hits + s.Misses
}

func TestPipelined_ManyCallersShareARoundTrip(t *testing.T) {
	t.Parallel()
	const callers, each = 200, 20
	node := testutil.Redis(t)
	client := node.Client()
	l := locker(t, core.Clients(client), core.Pipelined())
	var flushed atomic.Bool
	var all sync.WaitGroup
	inside := make([]int, callers) // without a lock of its own
	for i := range 2 * callers {
		all.Go(func() {
			for n := range each {
				k, err := l.Acquire(t.Context(), fmt.Sprintf("k%d", i%callers))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				inside[i%callers]++
				if n == each/2 && flushed.CompareAndSwap(false, true) { // the scripts are sent again, and nobody notices
					ok(t, "SCRIPT FLUSH", node.Client().ScriptFlush(t.Context()).Err())
				}
				if err := k.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	all.Wait()
	for i, n := range inside {
		if n != 2*each {
			t.Errorf("k%d was held %d times, want %d", i, n, 2*each)
		}
	}
	const commands = 2 * 2 * callers * each
	if pipelines, alone := sent(client); pipelines == 0 || pipelines > commands/4 || alone > commands/20 {
		t.Errorf("%d commands took %d pipelines and %d calls: they were not put together", commands, pipelines, alone)
	}
}

// I12 and I4 for a node that does not answer: each caller is back by its deadline, and what it asked for is not taken for
// nobody when the node goes on.
func TestPipelined_DeadlinesAreHonouredAndNothingStaysLocked(t *testing.T) {
	t.Parallel()
	t.Run("a moment", func(t *testing.T) {
		t.Parallel()
		deadlines(t, 5*time.Second, 0)
	})
	t.Run("longer than the node's time-out", func(t *testing.T) {
		t.Parallel()
		deadlines(t, time.Second, 1500*time.Millisecond)
	})
}

func deadlines(t *testing.T, nodeTimeout, stop time.Duration) {
	const callers = 120 // more than go in one batch
	const busy = 2 * time.Second
	node := testutil.Redis(t)
	client := node.Client()
	l := locker(t, core.Clients(client), core.Pipelined(), core.WithTTL(time.Minute), core.WithNodeTimeout(nodeTimeout))
	held := make([]*core.Lock, callers)
	for i := range held {
		held[i] = acquire(t, l, fmt.Sprintf("held:%d", i))
	}
	node.Stop()
	var all sync.WaitGroup
	var late atomic.Int64
	within := func(what string, most time.Duration, target error, call func(ctx context.Context) error) {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			start := time.Now()
			err := call(ctx)
			if took := time.Since(start); took > 200*time.Millisecond {
				late.Add(1)
				if took > most+busy {
					t.Errorf("%s took %v", what, took)
				}
			}
			if !errors.Is(err, target) { // on a busy machine before it was asked
				t.Errorf("%s: %v, want %v", what, err, target)
			}
		})
	}
	for i := range callers {
		within("Acquire", 100*time.Millisecond, context.DeadlineExceeded, func(ctx context.Context) error {
			_, err := l.Acquire(ctx, fmt.Sprintf("new:%d", i))
			return err
		})
		within("Release", 100*time.Millisecond, context.DeadlineExceeded, held[i].Release)
		// Who is alone is not in a batch, and a single call notices its deadline, not that it was cancelled.
		within("an Acquire that is cancelled", nodeTimeout, context.Canceled, func(context.Context) error {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(100*time.Millisecond, cancel)
			_, err := l.Acquire(ctx, fmt.Sprintf("cancelled:%d", i))
			return err
		})
	}
	all.Wait()
	t.Logf("%d of %d calls took longer than 200 ms", late.Load(), 3*callers)
	time.Sleep(stop) // the connections are given up
	node.Cont()
	other := node.Client()
	eventually(t, "nothing is locked", func() bool {
		for _, kind := range []string{"new", "held", "cancelled"} {
			keys, err := other.Keys(t.Context(), "onelane:{"+kind+":*}").Result()
			if err != nil || len(keys) > 0 {
				return false
			}
		}
		return true
	})
	ok(t, "Release", acquire(t, l, "new:0").Release(t.Context()))
}

func TestPipelined_AQuorumToo(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	l := locker(t, core.Clients(nodes.Clients()...), core.Pipelined(), core.WithNodeTimeout(time.Second))
	var all sync.WaitGroup
	inside := 0
	for i := range 20 {
		all.Go(func() {
			if err := l.Do(t.Context(), "k", func(context.Context) error { inside++; return nil }); err != nil {
				t.Errorf("Do: %v", err)
			}
			if err := l.Do(t.Context(), core.Join("own", fmt.Sprint(i)), func(context.Context) error { return nil }); err != nil {
				t.Errorf("Do: %v", err)
			}
		})
	}
	all.Wait()
	if inside != 20 {
		t.Errorf("%d holders, want 20", inside)
	}
}

// A large answer goes by itself, so that it does not hold up the others.
func TestPipelined_LargeSealsGoAlone(t *testing.T) {
	t.Parallel()
	const callers = 50
	client := testutil.Redis(t).Client()
	l := locker(t, core.Clients(client), core.Pipelined())
	for size, alone := range map[int]bool{1 << 10: false, 1 << 16: true} {
		var all sync.WaitGroup
		locks := make([]*core.Lock, callers)
		for i := range callers {
			all.Go(func() { locks[i], _ = l.Acquire(t.Context(), fmt.Sprintf("k%d:%d", size, i)) })
		}
		all.Wait()
		_, before := sent(client)
		for _, k := range locks {
			all.Go(func() {
				if err := k.Seal(t.Context(), make([]byte, size), time.Minute); err != nil {
					t.Errorf("Seal: %v", err)
				}
			})
		}
		all.Wait()
		if _, after := sent(client); (after-before >= callers) != alone {
			t.Errorf("%d of %d seals of %d bytes went alone", after-before, callers, size)
		}
	}
}

// Whoever asks while nobody else does pays for no batch.
func TestPipelined_ALoneCallerNeedsNoPipeline(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l := locker(t, core.Clients(client), core.Pipelined())
	for range 10 {
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	}
	if pipelines, alone := sent(client); pipelines > 0 || alone < 20 {
		t.Errorf("20 calls of one caller took %d pipelines and %d single calls", pipelines, alone)
	}
}

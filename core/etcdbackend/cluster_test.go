package etcdbackend_test

import (
	"context"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// The tests of a cluster share one, since each has three processes of etcd.
func TestBackend_Cluster(t *testing.T) {
	t.Parallel()
	etcd := testutil.EtcdCluster(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	if check.Long { // else one member has to pass the suite
		t.Run("Suite", func(t *testing.T) {
			backendtest.TestSealer(t, func(t *testing.T) core.Backend {
				return backendtest.Open(t, etcdbackend.New(client, etcdbackend.WithTimeout(20*time.Second)))
			})
		})
	}
	t.Run("Watch_MemberCutOff", func(t *testing.T) { watchCutOff(t, etcd) })
	agree(t, etcd, client)
	t.Run("HolderBehindMinority", func(t *testing.T) { holderBehindMinority(t, etcd) })
	agree(t, etcd, client)
	t.Run("Faults", func(t *testing.T) { faults(t, etcd, client) })
}

// agree waits until all members follow one leader.
func agree(t *testing.T, etcd testutil.EtcdMembers, client *clientv3.Client) {
	t.Helper()
	eventually(t, "all members have the same leader", func() bool {
		leaders := make(map[uint64]bool)
		for _, m := range etcd {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			status, err := client.Status(ctx, m.Addr())
			cancel()
			if err != nil || status.Leader == 0 {
				return false
			}
			leaders[status.Leader] = true
		}
		return len(leaders) == 1
	})
}

// A key has one holder at a time, its tokens increase, and locks are granted again. That holds
// whatever happens to a minority, or to all members in turn.
func faults(t *testing.T, etcd testutil.EtcdMembers, client *clientv3.Client) {
	var clients []*clientv3.Client
	for range 4 {
		clients = append(clients, etcd.Client())
	}
	var down *testutil.EtcdMember
	for _, f := range []struct {
		name        string
		fault, heal func()
	}{
		{"LeaderKilled", func() { down = etcd.Leader(); down.Kill() }, func() { down.Restart() }},
		{"LeaderHangs", func() {
			old := etcd.Leader()
			old.Stop()
			others(etcd, old).Leader()
			old.Cont()
		}, func() {}},
		{"LeaderCutOff", func() {
			old := etcd.Leader()
			old.Isolate()
			others(etcd, old).Leader()
			old.Rejoin()
		}, func() {}},
		{"FollowerHangs", func() { down = others(etcd, etcd.Leader())[0]; down.Stop() }, func() { down.Cont() }},
		{"AllRestart", func() {
			var all sync.WaitGroup
			for _, m := range etcd {
				m.Kill()
			}
			for _, m := range etcd {
				all.Go(m.Restart)
			}
			all.Wait()
		}, func() {}},
	} {
		t.Run(f.name, func(t *testing.T) {
			during(t, clients, f.name, f.fault)
			f.heal()
			agree(t, etcd, client)
		})
	}
}

func others(etcd testutil.EtcdMembers, one *testutil.EtcdMember) (all testutil.EtcdMembers) {
	for _, m := range etcd {
		if m != one {
			all = append(all, m)
		}
	}
	return all
}

// A leader that is cut off grants nothing, and a holder behind it hears of its loss by the deadline.
func holderBehindMinority(t *testing.T, etcd testutil.EtcdMembers) {
	old := etcd.Leader()
	behind := hasty(t, old.Client(), core.WithTTL(2*time.Second), core.WithOutageWait(0))
	var k *core.Lock
	eventually(t, "Acquire", func() bool {
		var err error
		k, err = behind.Acquire(t.Context(), "held", core.WithToken())
		return err == nil
	})
	first, err := k.Token(t.Context())
	ok(t, "Token", err)
	old.Isolate()
	defer old.Rejoin()
	next, err := hasty(t, others(etcd, old).Client(), core.WithOutageWait(time.Minute)).Acquire(t.Context(), "held", core.WithToken())
	ok(t, "Acquire by the majority", err)
	if k.Err() == nil {
		t.Error("two holders: the one behind the minority still believes in its lock")
	}
	if second, err := next.Token(t.Context()); err != nil || second <= first {
		t.Errorf("token %d after %d, %v", second, first, err)
	}
	_, err = behind.TryAcquire(t.Context(), "another")
	want(t, "Acquire behind the minority", err, core.ErrUnavailable)
}

// A watch through a member that is cut off ends, so that its waiter looks for itself.
func watchCutOff(t *testing.T, etcd testutil.EtcdMembers) {
	member := others(etcd, etcd.Leader())[0]
	b := open(t, member.Client())
	changed, stop, err := b.Watch(t.Context(), "watched")
	ok(t, "Watch", err)
	defer stop()
	member.Isolate()
	defer member.Rejoin()
	select {
	case _, more := <-changed:
		if more {
			t.Error("a signal, and the watch goes on")
		}
	case <-time.After(30 * time.Second):
		t.Error("the watch did not end")
	}
}

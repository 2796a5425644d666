package etcdbackend_test

import (
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestConformance_Cluster(t *testing.T) {
	t.Parallel()
	etcd := testutil.EtcdCluster(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	backendtest.TestSealer(t, func(t *testing.T) core.Backend {
		return backendtest.Open(t, etcdbackend.New(client, etcdbackend.WithTimeout(20*time.Second)))
	})
}

// A key has one holder at a time, its tokens increase, and locks are granted again. That holds
// whatever happens to a minority, or to all members in turn.
func TestCluster_Faults(t *testing.T) {
	for name, fault := range map[string]func(t *testing.T, etcd testutil.EtcdMembers){
		"LeaderKilled": func(_ *testing.T, etcd testutil.EtcdMembers) { etcd.Leader().Kill() },
		"LeaderHangs": func(_ *testing.T, etcd testutil.EtcdMembers) {
			old := etcd.Leader()
			old.Stop()
			others(etcd, old).Leader()
			old.Cont()
		},
		"LeaderCutOff": func(_ *testing.T, etcd testutil.EtcdMembers) {
			old := etcd.Leader()
			old.Isolate()
			others(etcd, old).Leader()
			old.Rejoin()
		},
		"FollowerHangs": func(_ *testing.T, etcd testutil.EtcdMembers) { others(etcd, etcd.Leader())[0].Stop() },
		"AllRestart": func(_ *testing.T, etcd testutil.EtcdMembers) {
			var all sync.WaitGroup
			for _, m := range etcd {
				m.Kill()
			}
			for _, m := range etcd {
				all.Go(m.Restart)
			}
			all.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := testutil.EtcdCluster(t)
			if etcd == nil {
				return
			}
			during(t, etcd.Client, func() { fault(t, etcd) })
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
func TestCluster_HolderBehindMinority(t *testing.T) {
	t.Parallel()
	etcd := testutil.EtcdCluster(t)
	if etcd == nil {
		return
	}
	old := etcd.Leader()
	behind := hasty(t, old.Client(), core.WithTTL(2*time.Second), core.WithOutageWait(0))
	var k *core.Lock
	eventually(t, "Acquire", func() bool {
		var err error
		k, err = behind.Acquire(t.Context(), "k", core.WithToken())
		return err == nil
	})
	first, err := k.Token(t.Context())
	ok(t, "Token", err)
	old.Isolate()
	next, err := hasty(t, others(etcd, old).Client(), core.WithOutageWait(time.Minute)).Acquire(t.Context(), "k", core.WithToken())
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

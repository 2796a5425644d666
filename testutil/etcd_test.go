package testutil_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/testutil"
)

func TestEtcd(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	locker, err := core.New(etcdbackend.New(etcd.Client()))
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	if _, err := locker.Acquire(t.Context(), "stock:42"); err != nil {
		t.Error(err)
	}
}

func TestEtcdCluster(t *testing.T) {
	t.Parallel()
	etcd := testutil.EtcdCluster(t)
	if etcd == nil {
		return
	}
	locker, err := core.New(etcdbackend.New(etcd.Client()))
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	etcd.Leader().Kill() // the two others elect one
	if _, err := locker.Acquire(t.Context(), "stock:42", core.WithOutageWait(time.Minute)); err != nil {
		t.Error(err)
	}
}

// A leader that is cut off has a successor, and is no leader when it is back.
func TestEtcdCluster_Isolate(t *testing.T) {
	t.Parallel()
	etcd := testutil.EtcdCluster(t)
	if etcd == nil {
		return
	}
	old := etcd.Leader()
	old.Isolate()
	var others testutil.EtcdMembers
	for _, m := range etcd {
		if m != old {
			others = append(others, m)
		}
	}
	until := func(what string, done func(context.Context) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			over := done(ctx)
			cancel()
			if over {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: not within a minute", what)
			}
		}
	}
	majority, minority := others.Client(), old.Client()
	until("the majority goes on", func(ctx context.Context) bool {
		_, err := majority.Put(ctx, "k", "v")
		return err == nil
	})
	if _, err := minority.Get(t.Context(), "k", clientv3.WithSerializable()); err != nil {
		t.Errorf("clients do not reach the member that is cut off: %v", err)
	}
	old.Rejoin()
	until("the member is back", func(ctx context.Context) bool {
		got, err := minority.Get(ctx, "k")
		return err == nil && len(got.Kvs) == 1
	})
}

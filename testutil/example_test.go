package testutil_test

import (
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// The tests below are the code in the comments of the functions that take a test.

func TestUsage_Locker(t *testing.T) {
	t.Parallel()
	locker := testutil.Locker(t, core.WithTTL(time.Minute))
	lock, err := locker.Acquire(t.Context(), "stock:42")
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestUsage_Redis(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	locker, err := core.New(redisbackend.New(node.Client()), core.WithOutageWait(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	if !node.Real() {
		return // a miniredis does not hang
	}
	node.Stop()
	_, err = locker.Acquire(t.Context(), "stock:42")
	if !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("with a Redis that hangs: %v", err)
	}
	node.Cont()
}

func TestUsage_MiniRedis(t *testing.T) {
	t.Parallel()
	locker, err := core.New(redisbackend.New(testutil.MiniRedis(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
}

func TestUsage_Cluster(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	quorum := redisbackend.New(nodes.Clients()...)
	quorum.NewInstallation = true // the nodes have just started
	locker, err := core.New(quorum)
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	for _, key := range []string{"stock:42", "stock:43"} {
		if _, err := locker.Acquire(t.Context(), key); err != nil {
			t.Error(err)
		}
		if nodes[0].Real() {
			nodes[0].Kill() // two of three go on
		}
	}
}

func TestUsage_Databases(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if err := gormlock.Migrate(db); err != nil {
			t.Fatal(err)
		}
	})
}

func TestUsage_RedisCluster(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	locker, err := core.New(redisbackend.New(cluster.Client()))
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	lock, err := locker.Acquire(t.Context(), "stock:42")
	if err != nil {
		t.Fatal(err)
	}
	move := cluster.BeginMove("stock:42", (cluster.Owner("stock:42")+1)%3)
	move.EndMove()
	if err := lock.Release(t.Context()); err != nil { // the client learns where the key has gone
		t.Error(err)
	}
}

func TestUsage_Sentinel(t *testing.T) {
	t.Parallel()
	redis := testutil.Sentinel(t)
	locker, err := core.New(redisbackend.New(redis.Client()))
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	redis.Master.Kill()
	redis.Promoted()
	_, err = locker.Acquire(t.Context(), "stock:42")
	for errors.Is(err, core.ErrUnavailable) { // until the client has heard of it
		_, err = locker.Acquire(t.Context(), "stock:42")
	}
	if err != nil {
		t.Error(err)
	}
}

package zkbackend_test

import (
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/onelane/onelane/testutil"
)

// BenchmarkLock acquires and releases a free key. The Lock of go-zookeeper does the same, without a
// deadline, and leaves a node for each name.
func BenchmarkLock(b *testing.B) {
	node := testutil.ZooKeeper(b)
	b.Run("onelane", func(b *testing.B) {
		l := locker(b, at(b, node.Addr()))
		for b.Loop() {
			k, err := l.Acquire(b.Context(), "k")
			ok(b, "Acquire", err)
			ok(b, "Release", k.Release(b.Context()))
		}
	})
	b.Run("go-zookeeper", func(b *testing.B) {
		c := client(b, node.Addr())
		for b.Loop() {
			l := zk.NewLock(c, "/k", zk.WorldACL(zk.PermAll))
			ok(b, "Lock", l.Lock())
			ok(b, "Unlock", l.Unlock())
		}
	})
}

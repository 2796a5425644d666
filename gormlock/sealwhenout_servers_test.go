package gormlock_test

import (
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// "Sold out" on etcd and on ZooKeeper is for every process, until somebody restocks.
func TestSealWhenOut_OnEtcdAndZooKeeper(t *testing.T) {
	t.Parallel()
	backends := make(map[string]core.Opener)
	if etcd := testutil.Etcd(t); etcd != nil {
		backends["etcd"] = etcdbackend.New(etcd.Client(), etcdbackend.WithTimeout(20*time.Second))
	}
	if node := testutil.ZooKeeper(t); node != nil {
		backends["zookeeper"] = zkbackend.New([]string{node.Addr()}, zkbackend.WithTimeout(20*time.Second))
	}
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
				ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
				l, elsewhere := locker(t, b), locker(t, b)
				ok(t, "Use", db.Use(gormlock.New(l, gormlock.WithWait(time.Minute))))
				key := core.Join("out", name, db.Name())
				put(t, db, 42, 1)
				sell := func() error {
					return db.Scopes(gormlock.Guard(key)).Transaction(func(tx *gorm.DB) error {
						_, err := gormlock.Decrement(tx.Model(&Stock{}).Where("sku = ?", 42), "left", 1,
							gormlock.SealWhenOut(time.Hour))
						return err
					})
				}
				ok(t, "the last unit", sell())
				eventually(t, "the key is sealed", func() bool { // the seal may not come in time at once
					want(t, "the first that gets nothing", sell(), gormlock.ErrInsufficient)
					return sealed(t, l, key)
				})
				want(t, "a later buyer", sell(), core.ErrSealed)
				_, err := elsewhere.Acquire(t.Context(), key)
				want(t, "another process", err, core.ErrSealed)
				ok(t, "Unseal", elsewhere.Unseal(t.Context(), key))
				ok(t, "restock", db.Model(&Stock{}).Where("sku = ?", 42).Update("left", 1).Error)
				ok(t, "the first buyer after", sell())
			})
		})
	}
}

package gormlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// TestFailover_FenceHoldsTheLine: a Redis master dies before its replica has a lock, and Sentinel
// makes the replica the master. Two holders now believe that they have the key. The database lets
// the newer one in, and nobody else.
func TestFailover_FenceHoldsTheLine(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		put(t, db, 42, 10)
		r := testutil.Sentinel(t)
		process := func() (*gorm.DB, *core.Locker) {
			b := redisbackend.New(r.Client())
			b.NodeTimeout = 10 * time.Second // the machine may be busy
			l, own := locker(t, b, core.WithTTL(10*time.Minute)), reopen(t, db)
			ok(t, "Use", own.Use(gormlock.New(l, gormlock.Fenced())))
			return own, l
		}
		older, olderLocks := process()
		newer, _ := process()
		sell := func(db *gorm.DB) error {
			return gormlock.Transaction(db, "stock:42", func(tx *gorm.DB) error {
				var s Stock
				if err := tx.Take(&s, "sku = 42").Error; err != nil {
					return err
				}
				return tx.Model(&s).Update("left", s.Left-1).Error
			})
		}
		ok(t, "sell", sell(newer)) // the fence is there already
		eventually(t, "the Release is replicated", func() bool {
			master, err := r.Master.Client().Exists(t.Context(), "onelane:{stock:42}").Result()
			replica, err2 := r.Replica.Client().Exists(t.Context(), "onelane:{stock:42}").Result()
			return err == nil && err2 == nil && master+replica == 0
		})
		r.Lag()
		// With its token: a token that the promoted master had to mint would show the loss.
		k, err := olderLocks.Acquire(t.Context(), "stock:42", core.WithToken())
		ok(t, "Acquire", err)
		r.Master.Kill()
		r.Promoted()
		eventually(t, "the key is had twice", func() bool {
			err := sell(newer)
			if err != nil && !errors.Is(err, core.ErrUnavailable) {
				t.Fatalf("the newer holder: %v", err)
			}
			return err == nil
		})
		ok(t, "the older holder believes in its lock", k.Err())
		err = sell(older.WithContext(core.WithLock(t.Context(), k)))
		want(t, "the older holder", err, gormlock.ErrFenced)
		wantLeft(t, db, 42, 8)
	})
}

// TestFailover_QuorumKeepsTheLock: the same with one of three masters. The other two know the lock.
func TestFailover_QuorumKeepsTheLock(t *testing.T) {
	t.Parallel()
	r, others := testutil.Sentinel(t), testutil.Cluster(t, 2)
	process := func() *core.Locker {
		clients := append([]redis.UniversalClient{r.Client()}, others.Clients()...)
		b := redisbackend.New(clients...)
		b.NodeTimeout, b.NewInstallation = time.Second, true
		return locker(t, b, core.WithTTL(30*time.Second))
	}
	first, second := process(), process()
	r.Lag()
	k, err := first.Acquire(t.Context(), "stock:42")
	ok(t, "Acquire", err)
	r.Master.Kill()
	r.Promoted()
	st, err := r.Replica.Client().Exists(t.Context(), "onelane:{stock:42}").Result()
	if ok(t, "Exists", err); st != 0 {
		t.Fatal("the promoted replica has the lock, so that this test shows nothing")
	}
	refused := func() error {
		_, err := second.TryAcquire(t.Context(), "stock:42")
		if !errors.Is(err, core.ErrTaken) && !errors.Is(err, core.ErrUnavailable) {
			t.Fatalf("another holder: got %v, want that it is taken", err)
		}
		return err
	}
	for range 20 { // while the clients find the new master, too
		_ = refused()
		time.Sleep(50 * time.Millisecond)
	}
	for began := time.Now(); !errors.Is(refused(), core.ErrTaken); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatal("the other holder reaches no majority")
		}
	}
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) { // and so does the client of the first
		if err = k.Extend(t.Context(), 30*time.Second); !errors.Is(err, core.ErrUnavailable) || time.Since(began) > 20*time.Second {
			break
		}
	}
	ok(t, "Extend", err)
	_ = k.Release(t.Context()) // what it could not say is said again
	next, err := second.Acquire(t.Context(), "stock:42", core.WithOutageWait(time.Minute))
	ok(t, "Acquire", err)
	if err := next.Release(t.Context()); !errors.Is(err, core.ErrUnavailable) { // the machine may be busy
		ok(t, "Release", err)
	}
}

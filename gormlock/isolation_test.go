package gormlock_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// eachLevel runs fn on each database whose sessions have each default isolation level. SQLite has one.
func eachLevel(t *testing.T, fn func(t *testing.T, db *gorm.DB)) {
	t.Helper()
	testutil.Databases(t, func(t *testing.T, plain *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(plain))
		ok(t, "AutoMigrate", plain.AutoMigrate(&Stock{}, &Item{}))
		put(t, plain, 42, 1)
		if plain.Name() == "sqlite" {
			fn(t, plain)
			return
		}
		for _, level := range []string{"read uncommitted", "read committed", "repeatable read", "serializable"} {
			t.Run(level, func(t *testing.T) {
				fn(t, openMode(t, plain, func(my *gomysql.Config, pg *pgx.ConnConfig) {
					if my != nil {
						variable := strings.ToUpper(strings.ReplaceAll(level, " ", "-"))
						my.Params = map[string]string{"transaction_isolation": "'" + variable + "'"}
					} else {
						pg.RuntimeParams = map[string]string{"default_transaction_isolation": level}
					}
				}))
			})
		}
	})
}

// TestTable_OneHolderAtATime: several processes, each with its Locker, on each isolation level.
func TestTable_OneHolderAtATime(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, db *gorm.DB) {
		var inside, turns atomic.Int32
		var last atomic.Uint64
		var all sync.WaitGroup
		lockers := make([]*core.Locker, 4)
		for i := range lockers {
			lockers[i] = locker(t, gormlock.Table(db, gormlock.WithTimeout(time.Minute)))
		}
		for i := range 8 { // two in each process, which hand over to each other
			l := lockers[i/2]
			all.Go(func() {
				for range 5 {
					k, err := l.Acquire(t.Context(), "k", core.WithWait(time.Minute), core.WithToken())
					if err != nil {
						t.Errorf("Acquire: %v", err)
						return
					}
					token := tokenOf(t, k)
					if n := inside.Add(1); n != 1 || token <= last.Load() {
						t.Errorf("%d inside, token %d after %d", n, token, last.Load())
					}
					last.Store(token)
					turns.Add(1)
					inside.Add(-1)
					if err := k.Release(t.Context()); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		all.Wait()
		if n := turns.Load(); n != 40 {
			t.Errorf("%d turns, want 40", n)
		}
	})
}

// The lock is of no help here: each caller's backend grants the key to everybody.
func TestOnce_IsolationLevels(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, db *gorm.DB) {
		for _, key := range []string{t.Name() + "1", t.Name() + "2"} {
			before := orders(t, db)
			var all sync.WaitGroup
			for i := range 6 {
				p := holder(t, db, uint64(i+1))
				all.Go(func() {
					n, err := gormlock.Once(t.Context(), p, key, func(tx *gorm.DB) (int, error) {
						return 7, tx.Create(&Item{StockID: 1, Name: "order"}).Error
					})
					if err != nil || n != 7 {
						t.Errorf("Once: %d, %v", n, err)
					}
				})
			}
			all.Wait()
			if n := orders(t, db) - before; n != 1 {
				t.Errorf("%d orders, want 1", n)
			}
		}
	})
}

package gormlock_test

import (
	"strings"
	"sync"
	"testing"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

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

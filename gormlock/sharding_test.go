package gormlock_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// sharding is gorm.io/sharding with one shard: a callback puts a connection pool around each
// statement, and that changes the name of the table.
type sharding struct{}

func (sharding) Name() string { return "gorm:sharding" }

func (sharding) Initialize(db *gorm.DB) error {
	all, sharded := db.Callback(), func(db *gorm.DB) { db.Statement.ConnPool = &shardedPool{db.Statement.ConnPool} }
	for _, err := range []error{
		all.Create().Before("*").Register("gorm:sharding", sharded),
		all.Query().Before("*").Register("gorm:sharding", sharded),
		all.Update().Before("*").Register("gorm:sharding", sharded),
		all.Delete().Before("*").Register("gorm:sharding", sharded),
		all.Row().Before("*").Register("gorm:sharding", sharded),
		all.Raw().Before("*").Register("gorm:sharding", sharded),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

type shardedPool struct{ gorm.ConnPool }

func suffixed(query string) string { return strings.ReplaceAll(query, "stocks", "stocks_1") }

func (c *shardedPool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return c.ConnPool.ExecContext(ctx, suffixed(query), args...)
}

func (c *shardedPool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return c.ConnPool.QueryContext(ctx, suffixed(query), args...)
}

func (c *shardedPool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	if base, ok := c.ConnPool.(gorm.ConnPoolBeginner); ok {
		return base.BeginTx(ctx, opts)
	}
	return c, nil
}

func (c *shardedPool) Commit() error { return c.ConnPool.(gorm.TxCommitter).Commit() }

func (c *shardedPool) Rollback() error { return c.ConnPool.(gorm.TxCommitter).Rollback() }

func TestSharding_Refused(t *testing.T) {
	t.Parallel()
	refused := func(t *testing.T, what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "gorm.io/sharding does not work with guards") {
			t.Errorf("%s returned %v", what, err)
		}
	}
	t.Run("registered before", func(t *testing.T) {
		db := openNothing(t, false)
		ok(t, "Use of sharding", db.Use(sharding{}))
		refused(t, "Use", db.Use(gormlock.New(nil)))
	})
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		ok(t, "AutoMigrate", db.Table("stocks_1").AutoMigrate(&Stock{}))
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		ok(t, "Use of sharding", db.Use(sharding{}))

		refused(t, "Create", db.Create(&Stock{SKU: 1, Left: 5}).Error)
		refused(t, "Create under a guard", db.Scopes(gormlock.Guard("stock:1")).Create(&Stock{SKU: 1, Left: 5}).Error)
		refused(t, "Create in a transaction", db.Transaction(func(tx *gorm.DB) error {
			return tx.Create(&Stock{SKU: 1, Left: 5}).Error
		}))
		refused(t, "Transaction", gormlock.Transaction(db, "stock:1", func(tx *gorm.DB) error {
			return tx.Create(&Stock{SKU: 1, Left: 5}).Error
		}))
		refused(t, "Save", db.Save(&Stock{SKU: 1, Left: 5}).Error)
		refused(t, "Delete", db.Where("sku = ?", 1).Delete(&Stock{}).Error)
		refused(t, "Exec", db.Exec("UPDATE stocks SET remaining = 0").Error)
		refused(t, "Find", db.Find(&[]Stock{}).Error)
		refused(t, "Row", db.Model(&Stock{}).Select("count(*)").Row().Err())
		for _, table := range []string{"stocks", "stocks_1"} {
			var rows int
			ok(t, "count", pool(t, db).QueryRow("SELECT COUNT(*) FROM "+table).Scan(&rows))
			if rows != 0 {
				t.Errorf("%s has %d rows", table, rows)
			}
		}
	})
}

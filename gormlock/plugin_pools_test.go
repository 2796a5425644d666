package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

type otherDialect struct{ gorm.Dialector }

func (otherDialect) Name() string { return "sqlserver" }

// TestNew_UnknownDialect: its savepoints may be others, and a block that failed would be committed.
func TestNew_UnknownDialect(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		other, err := gorm.Open(otherDialect{db.Dialector}, &gorm.Config{})
		ok(t, "Open", err)
		want(t, "Use", other.Use(gormlock.New(l)), gormlock.ErrDialect)
	})
}

// counter is what a plugin that counts statements puts around a pool.
type counter struct{ gorm.ConnPool }

// BeginTx implements gorm.ConnPoolBeginner.
func (c *counter) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	return c.ConnPool.(gorm.ConnPoolBeginner).BeginTx(ctx, opts)
}

// GetDBConn implements gorm.GetDBConnector.
func (c *counter) GetDBConn() (*sql.DB, error) {
	return c.ConnPool.(gorm.GetDBConnector).GetDBConn()
}

// TestNew_PoolWrappedLater: a plugin that is registered later may put its pool around ours.
func TestNew_PoolWrappedLater(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		wrapped := &counter{db.ConnPool}
		db.ConnPool, db.Statement.ConnPool = wrapped, wrapped
		ctx := gormlock.WithGuard(t.Context(), "a")
		guarded, boom := db.WithContext(ctx), errors.New("boom")
		write := func(tx *gorm.DB) error { return take(tx, 42) }
		for name, fn := range map[string]func() error{
			"Transaction":     func() error { return gormlock.Transaction(db, "k", write) },
			"with WithGuard":  func() error { return gormlock.Transaction(guarded, "k", write) },
			"a block":         func() error { return guarded.Transaction(write) },
			"single":          func() error { return take(db.Scopes(gormlock.Guard("k")), 42) },
			"single, context": func() error { return take(guarded, 42) },
			"Once": func() error {
				_, err := gormlock.Once(ctx, db, "o", func(tx *gorm.DB) (int, error) { return 1, write(tx) })
				return err
			},
		} {
			ok(t, name, fn())
			wantIdle(t, db, l, "k", "a", "o")
		}
		want(t, "rolled back", gormlock.Transaction(guarded, "k", func(tx *gorm.DB) error {
			ok(t, "take", write(tx))
			return boom
		}), boom)
		wantIdle(t, db, l, "k", "a")
		wantLeft(t, db, 42, 4)
	})
}

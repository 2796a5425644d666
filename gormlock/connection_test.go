package gormlock_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// connectionForms are what may be guarded inside db.Connection: a form works, or its error matches refused.
// Session(PrepareStmt) is not among them, as GORM leaves the connection there.
var connectionForms = map[string]struct {
	run     func(ctx context.Context, tx *gorm.DB) error
	refused error
}{
	"statement": {run: func(_ context.Context, tx *gorm.DB) error { return take(tx.Scopes(gormlock.Guard("k")), 42) }},
	"statement, fenced": {run: func(_ context.Context, tx *gorm.DB) error {
		return take(tx.Scopes(gormlock.Guard("k", gormlock.Fenced())), 42)
	}},
	"statement, skipping the default transaction": {run: func(_ context.Context, tx *gorm.DB) error {
		return take(tx.Session(&gorm.Session{SkipDefaultTransaction: true}).Scopes(gormlock.Guard("k")), 42)
	}},
	"WithGuard": {run: func(ctx context.Context, tx *gorm.DB) error {
		return take(tx.WithContext(gormlock.WithGuard(ctx, "k")), 42)
	}},
	"generics": {run: func(ctx context.Context, tx *gorm.DB) error {
		_, err := gorm.G[Stock](tx).Where("sku = ?", 42).Update(gormlock.WithGuard(ctx, "k"), "left", gorm.Expr("? - 1", column("left")))
		return err
	}},
	"Decrement": {run: func(_ context.Context, tx *gorm.DB) error {
		return decrement(tx.Model(&Stock{}).Scopes(gormlock.Guard("k")).Where("sku = 42"), "left", 1)
	}},
	"Transaction": {run: func(_ context.Context, tx *gorm.DB) error {
		return gormlock.Transaction(tx, "k", func(tx *gorm.DB) error { return errors.Join(tx.Take(&Stock{}).Error, take(tx, 42)) })
	}},
	"Transaction, fenced": {run: func(_ context.Context, tx *gorm.DB) error {
		return gormlock.Transaction(tx, "k", func(tx *gorm.DB) error { return take(tx, 42) }, gormlock.Fenced())
	}},
	"Transaction, generics": {run: func(ctx context.Context, tx *gorm.DB) error {
		return gormlock.Transaction(tx, "k", func(tx *gorm.DB) error {
			_, err := gorm.G[Stock](tx).Where("sku = ?", 42).Update(ctx, "left", gorm.Expr("? - 1", column("left")))
			return err
		})
	}},
	"Once": {run: func(ctx context.Context, tx *gorm.DB) error {
		for range 2 {
			if n, err := gormlock.Once(ctx, tx, "k", func(tx *gorm.DB) (int, error) { return 7, take(tx, 42) }); err != nil || n != 7 {
				return errors.Join(err, errors.New("no result"))
			}
		}
		return nil
	}},
	"block": {refused: gormlock.ErrUnmanagedTransaction, run: func(_ context.Context, tx *gorm.DB) error {
		return tx.Scopes(gormlock.Guard("k")).Transaction(func(tx *gorm.DB) error { return take(tx, 42) })
	}},
	"block, WithGuard": {refused: gormlock.ErrUnmanagedTransaction, run: func(ctx context.Context, tx *gorm.DB) error {
		return tx.WithContext(gormlock.WithGuard(ctx, "k")).Transaction(func(tx *gorm.DB) error { return take(tx, 42) })
	}},
	"Transaction in a block": {refused: gormlock.ErrUnmanagedTransaction, run: func(_ context.Context, tx *gorm.DB) error {
		return tx.Transaction(func(tx *gorm.DB) error {
			return gormlock.Transaction(tx, "k", func(tx *gorm.DB) error { return take(tx, 42) })
		})
	}},
	"read": {refused: gormlock.ErrNoTransaction, run: func(_ context.Context, tx *gorm.DB) error {
		return tx.Scopes(gormlock.Guard("k")).Take(&Stock{}).Error
	}},
}

// TestConnection: inside db.Connection each form runs under its lock and on that connection, the
// only one of the pool here. Otherwise its error says what to do instead.
func TestConnection(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 100)
		pool(t, db).SetMaxOpenConns(1)
		statements, n := 0, int64(100)
		ok(t, "Register", db.Callback().Update().Before("gorm:after_update").Register("seen", func(tx *gorm.DB) {
			if tx.Error != nil {
				return // it was not sent
			}
			statements++
			if _, err := gormlock.Token(tx); err != nil || !held(t, l, "k") {
				t.Errorf("a statement without the lock: %s", tx.Statement.SQL.String())
			}
		}))
		for name, form := range connectionForms {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			statements = 0
			err := db.WithContext(ctx).Connection(func(tx *gorm.DB) error {
				tx = tx.Session(&gorm.Session{})
				err := form.run(ctx, tx)
				if held(t, l, "k") {
					t.Errorf("%s: the key is locked after it", name)
				}
				if used := inUse(t, db); used != 1 {
					t.Errorf("%s: %d connections", name, used)
				}
				return errors.Join(err, tx.Take(&Stock{}).Error) // the connection is good, and nothing is left of the guard
			})
			cancel()
			switch {
			case form.refused == nil && (err != nil || statements != 1):
				t.Errorf("%s: %v, %d statements", name, err, statements)
			case form.refused == nil:
				n--
			case !errors.Is(err, form.refused) || statements != 0:
				t.Errorf("%s: %v, %d statements", name, err, statements)
			case form.refused == gormlock.ErrUnmanagedTransaction && !strings.Contains(err.Error(), "inside db.Connection use gormlock.Transaction"):
				t.Errorf("%s: it does not say what to do: %v", name, err)
			}
			wantLeft(t, db, 42, n)
			wantIdle(t, db, l, "k")
		}
	})
}

// TestBegin_FailsOnSQLite: the guard releases the connection that was kept for the transaction, and
// the key too.
func TestBegin_FailsOnSQLite(t *testing.T) {
	t.Parallel()
	dsn := "file:" + filepath.Join(t.TempDir(), "busy") + "?_pragma=busy_timeout(1)&_txlock=immediate"
	db, err := gorm.Open(sqlite.Open(dsn), &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	defer pool(t, db).Close()
	ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
	put(t, db, 42, 10)
	l := locker(t, backendtest.Memory())
	ok(t, "Use", db.Use(gormlock.New(l)))
	writer, err := pool(t, db).BeginTx(t.Context(), nil)
	ok(t, "BeginTx", err)
	if err := take(db.Scopes(gormlock.Guard("k")), 42); err == nil || !strings.Contains(err.Error(), "locked") {
		t.Errorf("got %v", err)
	}
	ok(t, "Rollback", writer.Rollback())
	wantIdle(t, db, l, "k")
}

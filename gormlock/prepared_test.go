package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestPrepared_WaitingForBegin: GORM prepares a statement once for all who want it. A transaction
// that waits for a connection, or for a fence, must not be the one that prepares. The transactions
// that have the connection or fence would wait for it, and its error would be theirs.
func TestPrepared_WaitingForBegin(t *testing.T) {
	t.Parallel()
	begins := map[string]func(db *gorm.DB) error{
		"a single statement": func(db *gorm.DB) error { return take(db, 42) },
		"a block": func(db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error { return take(tx, 42) })
		},
		"a guarded statement": func(db *gorm.DB) error { return take(db.Scopes(gormlock.Guard("k")), 42) },
		"a read": func(db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error { return tx.Take(&Stock{}, "sku = ?", 42).Error })
		},
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		for name, begin := range begins {
			waited := pool(t, db).Stats().WaitCount
			pool(t, db).SetMaxOpenConns(1)
			session := reopen(t, db) // nothing is prepared in it
			ok(t, "Use", session.Use(gormlock.New(l)))
			has := session.Begin()
			ok(t, "the only connection is taken", has.Exec("SELECT 1").Error)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			waits := make(chan error, 1)
			go func() { waits <- begin(session.WithContext(ctx)) }()
			eventually(t, name+" waits for it", func() bool { return pool(t, db).Stats().WaitCount > waited })
			time.Sleep(20 * time.Millisecond)
			start := time.Now()
			ok(t, name+": the same statement", same(has, name))
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("%s: it took %v", name, took)
			}
			ok(t, "Commit", has.Commit().Error)
			ok(t, name, <-waits)
			cancel()
			pool(t, db).SetMaxOpenConns(0)
		}
	})
}

// same runs the statement of one of the cases.
func same(tx *gorm.DB, name string) error {
	if name == "a read" {
		return tx.Take(&Stock{}, "sku = ?", 42).Error
	}
	return take(tx, 42)
}

// TestPrepared_PoolUsedUp: with one connection, a guarded transaction prepares on that. If a read
// outside of it prepares the same statement, the read waits for the connection, and GORM lets the
// transaction wait for the read. Both end with the context of the read, with and without the plugin.
func TestPrepared_PoolUsedUp(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		pool(t, db).SetMaxOpenConns(1)
		ok(t, "alone", gormlock.Transaction(db.Session(&gorm.Session{PrepareStmt: true}), "k", func(tx *gorm.DB) error {
			return errors.Join(take(tx, 42), tx.Transaction(func(tx *gorm.DB) error { return take(tx, 42) }))
		}))
		left := int64(8)
		for _, plugged := range []bool{true, false} {
			prepared := reopen(t, db).Session(&gorm.Session{PrepareStmt: true})
			run := prepared.Transaction
			if plugged {
				prepared = reopen(t, db)
				ok(t, "Use", prepared.Use(gormlock.New(l)))
				prepared = prepared.Session(&gorm.Session{PrepareStmt: true})
				run = func(fn func(tx *gorm.DB) error, _ ...*sql.TxOptions) error {
					return gormlock.Transaction(prepared, "k", fn)
				}
			}
			read := func(db *gorm.DB) error { return db.Where("sku > ?", 0).Find(&[]Stock{}).Error }
			ok(t, "transaction", run(func(tx *gorm.DB) error {
				ok(t, "take", take(tx, 42))
				ctx, cancel := context.WithCancel(t.Context())
				waited, outside, inside := pool(t, db).Stats().WaitCount, make(chan error, 1), make(chan error, 1)
				go func() { outside <- read(prepared.WithContext(ctx)) }()
				eventually(t, "the read waits for the connection", func() bool { return pool(t, db).Stats().WaitCount > waited })
				go func() { inside <- read(tx) }()
				select {
				case err := <-inside:
					t.Errorf("plugin %v: the transaction did not wait for the read: %v", plugged, err)
				case <-time.After(50 * time.Millisecond):
				}
				cancel()
				want(t, "outside", <-outside, context.Canceled)
				if err := <-inside; err != nil && !errors.Is(err, context.Canceled) { // nil if it came late
					t.Errorf("plugin %v: inside: %v", plugged, err)
				}
				ok(t, "later", read(tx))
				return take(tx, 42)
			}))
			left -= 2
			wantLeft(t, db, 42, left)
		}
	})
}

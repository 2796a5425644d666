package gormlock_test

import (
	"context"
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

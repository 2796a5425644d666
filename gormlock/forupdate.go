package gormlock

import (
	"fmt"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

const forUpdateKey = "gormlock:for update" // in Statement.Settings

// ForUpdateOption says what [ForUpdate] does about rows that others have locked. A nil one is ignored, the later wins.
type ForUpdateOption interface{ applyForUpdate(*clause.Locking) }

type forUpdateOption string

func (o forUpdateOption) applyForUpdate(l *clause.Locking) { l.Options = string(o) }

// NoWait makes [ForUpdate] fail where it would wait: with the database's error.
func NoWait() ForUpdateOption { return forUpdateOption(clause.LockingOptionsNoWait) }

// SkipLocked makes [ForUpdate] read as if rows that others have locked were not there: for picking any one of many.
func SkipLocked() ForUpdateOption { return forUpdateOption(clause.LockingOptionsSkipLocked) }

// ForUpdate returns a scope that makes a read lock its rows until the end of the transaction, SELECT … FOR UPDATE:
//
//	db.Transaction(func(tx *gorm.DB) error {
//		var s Stock
//		if err := tx.Scopes(gormlock.ForUpdate()).Take(&s, "sku = ?", 42).Error; err != nil { … }
//		return tx.Model(&s).Update("left", s.Left-1).Error
//	})
//
// It is the database's own lock, and needs no Redis: others who read the rows so, or write them, wait as long as the
// database is set to, or until their context ends. Rows that are not there are not locked; what is preloaded is not.
//
// SQLite has no row locks: there the transaction becomes the database's only writer before it reads, as BEGIN IMMEDIATE
// does. If others wrote since its first read, that is SQLite's busy error, and the transaction must be run again. NoWait
// and SkipLocked change nothing there.
//
// Outside a transaction, where the lock would end at once, the read's error is [ErrNoTransaction]; with raw SQL, which it
// cannot change, gorm.ErrNotImplemented; without the plugin [ErrNotRegistered]. The scope may be kept and used
// concurrently.
func ForUpdate(opts ...ForUpdateOption) func(*gorm.DB) *gorm.DB {
	locking := clause.Locking{Strength: clause.LockingStrengthUpdate}
	for _, o := range opts {
		if o != nil {
			o.applyForUpdate(&locking)
		}
	}
	return func(db *gorm.DB) *gorm.DB {
		tx := db.Clauses(locking).Set(forUpdateKey, true)
		if _, err := registered(db); err != nil {
			_ = tx.AddError(fmt.Errorf("gormlock: ForUpdate: %w", err))
		}
		return tx
	}
}

// lockRows runs before a read: it says where ForUpdate cannot lock, and locks on SQLite.
func lockRows(db *gorm.DB) error {
	s := db.Statement
	if on, _ := s.Settings.Load(forUpdateKey); on == nil || db.DryRun {
		return nil
	}
	if s.SQL.Len() > 0 {
		return fmt.Errorf("gormlock: ForUpdate cannot change raw SQL: write FOR UPDATE into it: %w", gorm.ErrNotImplemented)
	}
	if _, open := transactionOf(s.ConnPool); !open {
		return fmt.Errorf("gormlock: ForUpdate: %w: the rows would be free again before what is read is used; put the read into .Transaction", ErrNoTransaction)
	}
	if db.Dialector.Name() != "sqlite" {
		return nil
	}
	// It makes the transaction a writer, without a table's name, which an alias, a view and a subquery do not have. At most
	// one free page is given back, where the database does that at all.
	if _, err := s.ConnPool.ExecContext(s.Context, "PRAGMA incremental_vacuum(1)"); err != nil {
		return fmt.Errorf("gormlock: ForUpdate: %w", err)
	}
	return nil
}

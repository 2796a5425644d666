package gormlock

import (
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

const forUpdateKey = "gormlock:for update" // in Statement.Clauses

// ForUpdate returns a scope that makes a read lock its rows until the end of the transaction,
// SELECT … FOR UPDATE:
//
//	db.Transaction(func(tx *gorm.DB) error {
//		var s Stock
//		if err := tx.Scopes(gormlock.ForUpdate()).Take(&s, "sku = ?", 42).Error; err != nil { … }
//		return tx.Model(&s).Update("left", s.Left-1).Error
//	})
//
// It is the database's own lock and needs no Redis. Others who read the rows with ForUpdate, or
// write them, wait as long as the database is set to, or until their context ends. With
// clause.LockingOptionsNoWait the read fails instead of waiting, with the database's error. With
// clause.LockingOptionsSkipLocked it reads as if rows that others have locked were not there. Rows
// that do not exist and rows that are preloaded are not locked.
//
// SQLite has no row locks: there the transaction becomes the database's only writer before it
// reads, as BEGIN IMMEDIATE does. If others wrote since its first read, the error is SQLite's busy
// error, and the transaction must be run again. The options change nothing there.
//
// Outside a transaction the lock would end at once, so the read's error is [ErrNoTransaction].
// ForUpdate cannot change raw SQL, so the error is gorm.ErrNotImplemented there. Without the plugin
// it is [ErrNotRegistered]. The scope may be kept and used concurrently.
//
// GORM drops it, without an error, where it drops a [Guard]: gorm.G[Stock](tx.Scopes(ForUpdate()))
// locks nothing. docs/gorm.md shows how to apply it in the generics API.
func ForUpdate(options ...string) func(*gorm.DB) *gorm.DB {
	locking := clause.Locking{Strength: clause.LockingStrengthUpdate, Options: strings.Join(options, " ")}
	known := []string{"", clause.LockingOptionsNoWait, clause.LockingOptionsSkipLocked}
	return func(db *gorm.DB) *gorm.DB {
		if !slices.Contains(known, locking.Options) {
			_ = db.AddError(fmt.Errorf("gormlock: ForUpdate(%q): it takes clause.LockingOptionsNoWait or clause.LockingOptionsSkipLocked", options))
			return db
		}
		tx := db.Clauses(locking)
		tx.Statement.Clauses[forUpdateKey] = clause.Clause{}
		if _, err := registered(db); err != nil {
			_ = tx.AddError(fmt.Errorf("gormlock: ForUpdate: %w", err))
		}
		return tx
	}
}

// lockRows runs before a read: it refuses what ForUpdate cannot lock, and locks on SQLite.
func lockRows(db *gorm.DB) error {
	s := db.Statement
	if _, on := s.Clauses[forUpdateKey]; !on || db.DryRun {
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
	// It makes the transaction a writer, without a table's name, which an alias, a view and a
	// subquery do not have. At most one free page is released, if the database does that at all.
	if _, err := s.ConnPool.ExecContext(s.Context, "PRAGMA incremental_vacuum(1)"); err != nil {
		return fmt.Errorf("gormlock: ForUpdate: %w", err)
	}
	return nil
}

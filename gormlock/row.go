package gormlock

import (
	"database/sql"

	"gorm.io/gorm"
)

// watchesRow reports whether the transaction must see the error of a Row.
func (t *transaction) watchesRow() bool {
	if t == nil || t.guarded() {
		return t != nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.silentLocked() && !t.undone.empty()
}

// rowAtOnce lets GORM's callback for Row, which is query, read the row at once under a guard, or if
// AfterCommit waits for MySQL. A *sql.Row keeps the error with which the database ended the
// transaction to itself.
func rowAtOnce(query func(*gorm.DB)) func(*gorm.DB) {
	return func(db *gorm.DB) {
		t, _ := transactionOf(db.Statement.ConnPool)
		wanted, _ := db.Get("rows")
		if db.Error != nil || db.DryRun || wanted == true || !t.watchesRow() {
			query(db)
			return
		}
		db.Statement.Settings.Store("rows", true)
		query(db)
		db.Statement.Settings.Delete("rows")
		rows, _ := db.Statement.Dest.(*sql.Rows)
		err := db.Error
		db.Error = nil // Scan reports the error of a Row
		switch {
		case err != nil:
			db.Statement.Dest = failedRow(err)
		case rows != nil:
			row := firstRow(rows)
			if err := rows.Close(); err != nil {
				row = failedRow(err)
			}
			t.handedOut(rows)
			db.Statement.Dest = row
		}
	}
}

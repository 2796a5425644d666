package gormlock

import (
	"fmt"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// Decrement takes n from a column of the row that db selects, if there is as much in it, in one statement:
//
//	err := gormlock.Decrement(db.Model(&Stock{}).Where("sku = ?", 42), "left", 1)
//	// UPDATE stocks SET left = left - 1 WHERE sku = 42 AND left >= 1
//
// The database does both at once: it never takes what is not there, with or without a guard or a transaction, whatever
// else runs. Hooks run and updated_at is set as by Update. The column is that of a field or of the table, and is quoted.
//
// If no row was changed the error is [*InsufficientError]: not enough is left, or there is no such row; to know which,
// read it. Let the conditions select one row: of several, those that have enough are taken from. n below 1 is an error, no
// condition at all is gorm.ErrMissingWhereClause, DryRun gorm.ErrDryRunModeUnsupported. [SealWhenOut] turns later buyers
// away without the database.
func Decrement(db *gorm.DB, column string, n int64, opts ...DecrementOption) error {
	seal, err := sellOutWith(db, opts)
	if err != nil {
		return fmt.Errorf("gormlock: decrement column %q by %d: %w", column, n, err)
	}
	if n < 1 {
		return fmt.Errorf("gormlock: decrement column %q by %d: it must be at least 1", column, n)
	}
	if db.DryRun {
		return fmt.Errorf("gormlock: decrement column %q: %w", column, gorm.ErrDryRunModeUnsupported)
	}
	name := clause.Column{Name: column}
	if s := db.Statement; s.Model != nil {
		parsed := &gorm.Statement{DB: db}
		if err := parsed.Parse(s.Model); err != nil {
			return fmt.Errorf("gormlock: decrement column %q: %w", column, err)
		}
		if f := parsed.Schema.LookUpField(column); f != nil {
			name.Name = f.DBName
		}
	}
	enough := func(db *gorm.DB) *gorm.DB { // the last scope, as others may bring the condition
		if !db.AllowGlobalUpdate && !selects(db.Statement) {
			_ = db.AddError(fmt.Errorf("gormlock: decrement column %q: %w: name the row by a Where, or by a model with its primary key", column, gorm.ErrMissingWhereClause))
		}
		where, _ := db.Statement.Clauses["WHERE"].Expression.(clause.Where)
		if seal != nil {
			db.Statement.Settings.Store(sellOutKey{db.Statement}, seal.selecting(db.Statement, where.Exprs, name.Name))
		}
		exprs := []clause.Expression{clause.Expr{SQL: "? >= ?", Vars: []any{name, n}}}
		if len(where.Exprs) > 0 { // one And, so that an Or in it does not go around what follows
			exprs = append(exprs, clause.And(where.Exprs...))
		}
		db.Statement.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: exprs}}
		return db
	}
	tx := db.Scopes(enough).Set(unversionedBy, true).Update(column, gorm.Expr("? - ?", name, n))
	switch {
	case tx.Error != nil:
		return tx.Error
	case tx.RowsAffected == 0:
		return &InsufficientError{Table: tx.Statement.Table, Column: column, N: n}
	}
	return nil
}

// selects says whether an update with s has a condition: its own, or the primary key of the model.
func selects(s *gorm.Statement) bool {
	if where, ok := s.Clauses["WHERE"].Expression.(clause.Where); ok && len(where.Exprs) > 0 {
		return true
	}
	return len(primaryKey(s)) > 0
}

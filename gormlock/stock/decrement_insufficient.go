package stock

import (
	"bytes"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"unicode"
	"unicode/utf8"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/internal/gormkeys"
)

// insufficient is the error of a decrement that changed no row. If the row has a key, it says what is
// left of it.
func (d *decrement) insufficient(db *gorm.DB) error {
	e := &InsufficientError{Table: d.statement.Table, Row: d.row(), Column: d.name, N: d.n, Left: -1}
	if d.key == nil {
		return e
	}
	left, err := d.readLeft(db)
	if err != nil { // after a deadlock the transaction is gone
		return errors.Join(e, err)
	}
	e.Left = left
	return e
}

// row is what the statement selected, as text.
func (d *decrement) row() string {
	update := d.statement
	s := &gorm.Statement{DB: update.DB, Context: update.Context, Table: update.Table, Schema: update.Schema}
	where := d.where
	if len(where) == 1 {
		if e, ok := where[0].(gormkeys.Enclosed); ok {
			where = e
		}
	}
	clause.Where{Exprs: where}.Build(s)
	for i, v := range s.Vars {
		v, _ = driver.DefaultParameterConverter.ConvertValue(v)
		if b, ok := v.([]byte); ok && bytes.ContainsFunc(b, binary) { // GORM would write <binary>
			s.Vars[i] = fmt.Sprintf("0x%x", b)
		}
	}
	return update.DB.Explain(s.SQL.String(), s.Vars...)
}

// readLeft reads the newest value of the column for an InsufficientError. It returns -1 if there is
// no such number.
func (d *decrement) readLeft(db *gorm.DB) (int64, error) {
	var left []sql.Null[int64]
	newest := clause.Locking{Strength: clause.LockingStrengthUpdate}
	read := d.pluck(db.Session(&gorm.Session{NewDB: true}).Clauses(newest), &left)
	if read.Error != nil || len(left) != 1 || !left[0].Valid {
		return -1, read.Error
	}
	return left[0].V, nil
}

// pluck reads the column of the rows that the UPDATE selected. db is a new session. The condition
// of a soft delete is among the others already.
func (d *decrement) pluck(db *gorm.DB, left any) *gorm.DB {
	s, name := d.statement, d.column.Name
	q := db.Unscoped().Clauses(only(name))
	if len(d.where) > 0 {
		q = q.Clauses(clause.Where{Exprs: d.where})
	}
	if s.Schema != nil { // an empty model, because the caller goes on with that of the UPDATE
		q = q.Model(reflect.New(s.Schema.ModelType).Interface())
	}
	q.Statement.Table, q.Statement.TableExpr = s.Table, s.TableExpr
	return q.Pluck(name, left)
}

func binary(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }

// only selects one column. Pluck by itself would not quote a name like "left-over", and would keep
// the caller's Select.
func only(column string) clause.Select {
	return clause.Select{Columns: []clause.Column{{Name: column}}}
}

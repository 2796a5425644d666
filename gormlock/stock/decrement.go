package stock

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/onelane/onelane/internal/gormkeys"
)

// Decrement takes n from a column of the row that db selects, if the row has at least n, in one
// statement. It returns what the statement left:
//
//	left, err := stock.Decrement(db.Model(&Stock{}).Where("sku = ?", 42), "left", 1)
//	// UPDATE stocks SET left = left - 1 WHERE left >= 1 AND sku = 42
//
// The database compares and subtracts at once, so Decrement never takes what is not there, with or
// without a guard or a transaction. Hooks run and updated_at changes as GORM's Update does it.
// Neither a field's permissions nor Select, Omit or a hook can drop the column or the condition.
// The column is the name of a field or of a column.
//
// The conditions must name one row. If no transaction is open, the UPDATE and its hooks run in one,
// even with SkipDefaultTransaction. Errors:
//
//   - [*InsufficientError]: the row has less than n, or there is no such row. BeforeUpdate hooks have
//     run then, and AfterUpdate hooks do not run.
//   - Several rows would be changed. Nothing is taken, and a transaction that was open is rolled back.
//   - [ErrCommitUnknown]: the outcome of the COMMIT is not known.
//   - gorm.ErrMissingWhereClause: there is no condition.
//   - gorm.ErrInvalidData: an UPDATE cannot write this Joins, Group, Having or FROM.
//   - gorm.ErrDryRunModeUnsupported: db has DryRun.
//   - [ErrDialect]: the database is not MySQL, MariaDB, PostgreSQL or SQLite (3.35 or newer).
//
// New associations of the model are not written. Order, Limit and clause.Returning are dropped: the
// result, not the model, says what is left. The column must have an integer type.
//
// [DecrementAll] takes from several rows. [Sale] also stores what was paid for, much faster.
func Decrement(db *gorm.DB, column string, n int64) (left int64, err error) {
	d, err := newDecrement(db, column, n)
	if err == nil {
		err = db.Error
	}
	if err != nil {
		return 0, fmt.Errorf("stock: decrement column %q by %d: %w", column, n, err)
	}
	if isOpen(db) {
		return d.takeOne(db)
	}
	err = transact(db, tableOf(db), nil, func(tx *gorm.DB) error {
		left, err = d.takeOne(tx)
		return err
	})
	if err != nil {
		return 0, err
	}
	return left, nil
}

// takeOne takes from one row in the transaction of db.
func (d *decrement) takeOne(db *gorm.DB) (left int64, err error) {
	// A session, because the caller may go on with db.
	err = d.run(db.Session(&gorm.Session{SkipDefaultTransaction: true}))
	switch {
	case d.matched > 1:
		rollback(db, err)
		return 0, err
	case err != nil:
		return 0, err
	case d.matched == 1:
		return d.left, nil
	}
	return 0, d.insufficient(db)
}

// DecrementAll takes from several rows, all or none, and returns what it left of each:
//
//	left, err := stock.DecrementAll(db.Model(&Stock{}), "sku", "left", map[int]int64{42: 1, 43: 2})
//
// The map has the quantity for each value of the key column. Each value must name one row. If the
// key is a field of the model, pass numbers for a number, texts for a text. The conditions of db
// apply to every row. An empty map takes nothing.
//
// DecrementAll runs one [Decrement] for each row, in a transaction, or behind a savepoint if one is
// open.
//
//   - If one row has too little, nothing is taken, and the error is its [*InsufficientError] with
//     what is left of it. If reading that fails, the error has both reasons.
//   - If the rollback to the savepoint fails, the open transaction is rolled back.
//   - If the outcome of COMMIT is not known, the error is [ErrCommitUnknown].
//   - The rows are locked in the order of their keys, so two carts cannot deadlock. They can
//     deadlock if they write one key in two ways, such as "a" and "A" if the database ignores case.
func DecrementAll[K cmp.Ordered](
	db *gorm.DB, key, column string, quantities map[K]int64,
) (left map[K]int64, err error) {
	left = make(map[K]int64, len(quantities))
	if len(quantities) == 0 {
		return left, nil
	}
	name, field, err := columnOf(db, key)
	if err == nil {
		err = sameKind(field, *new(K))
	}
	if err != nil {
		return nil, fmt.Errorf("stock: decrement column %q by key %q: %w", column, key, err)
	}
	if db.Error != nil { // GORM would begin, and never end it
		return nil, db.Error
	}
	err = allOrNone(db, func(tx *gorm.DB) error {
		for _, k := range slices.Sorted(maps.Keys(quantities)) {
			d, err := newDecrement(tx, column, quantities[k])
			if err != nil {
				return fmt.Errorf("stock: decrement column %q by %d: key %q with the value %v: %w", column, quantities[k], key, k, err)
			}
			d.key = &clause.Eq{Column: clause.Column{Table: clause.CurrentTable, Name: name}, Value: k}
			rest, err := d.takeOne(tx)
			if err != nil && !errors.Is(err, ErrInsufficient) {
				return fmt.Errorf("stock: key %q with the value %v: %w", key, k, err)
			}
			if err != nil {
				return err
			}
			left[k] = rest
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return left, nil
}

// allOrNone runs fn in a transaction, or behind a savepoint if one is open. GORM would not send a
// ROLLBACK TO after the end of the context, and would ignore its errors. The caller could then commit
// what fn wrote. If ROLLBACK TO fails here, the open transaction ends.
func allOrNone(db *gorm.DB, fn func(tx *gorm.DB) error) (err error) {
	if _, err := gormkeys.DialectOf(db); err != nil {
		return fmt.Errorf("stock: %w", err)
	}
	if !isOpen(db) {
		return transact(db, tableOf(db), nil, fn)
	}
	direct := gormkeys.Unprepared(db)
	name := "onelane_" + strings.ToLower(rand.Text()[:16])
	if err := direct.Exec("SAVEPOINT " + name).Error; err != nil {
		return err
	}
	done := false
	// fn may panic.
	defer func() {
		if done {
			return
		}
		all := direct.Session(&gorm.Session{NewDB: true, Context: context.WithoutCancel(db.Statement.Context)})
		if err := all.Exec("ROLLBACK TO SAVEPOINT " + name).Error; err != nil {
			rollback(db, fmt.Errorf("stock: ROLLBACK TO SAVEPOINT failed, "+
				"so the transaction is rolled back: %w", err))
			return
		}
		_ = all.Exec("RELEASE SAVEPOINT " + name).Error // it is empty
	}()
	if err := fn(db.Session(&gorm.Session{})); err != nil {
		return err
	}
	// PostgreSQL keeps locks and memory for each savepoint that stands.
	err = direct.Exec("RELEASE SAVEPOINT " + name).Error
	done = err == nil
	return err
}

// columnOf returns the column of a field of the model, or the name itself and no field.
func columnOf(db *gorm.DB, name string) (string, *schema.Field, error) {
	if db.Statement.Model == nil {
		return name, nil, nil
	}
	parsed := &gorm.Statement{DB: db}
	if err := parsed.Parse(db.Statement.Model); err != nil {
		return "", nil, err
	}
	if f := parsed.Schema.LookUpField(name); f != nil && f.DBName != "" {
		return f.DBName, f, nil
	}
	return name, nil, nil
}

// tableOf returns the table of a statement, or "".
func tableOf(db *gorm.DB) string {
	if db.Statement.Table != "" || db.Statement.Model == nil {
		return db.Statement.Table
	}
	parsed := &gorm.Statement{DB: db}
	_ = parsed.Parse(db.Statement.Model) // the statement itself reports the error
	return parsed.Table
}

// sameKind refuses a number as the key of a text column, and a text as that of a number. MySQL would
// compare them as two numbers, and "2nd shelf" is 2 then.
func sameKind(f *schema.Field, key any) error {
	if f == nil || f.Serializer != nil {
		return nil
	}
	for _, v := range []any{key, reflect.New(f.IndirectFieldType).Interface()} {
		// A Valuer decides what is sent.
		if _, ok := v.(driver.Valuer); ok {
			return nil
		}
	}
	number := func(v reflect.Value) bool { return v.CanInt() || v.CanUint() || v.CanFloat() }
	field, byNumber := reflect.Zero(f.IndirectFieldType), number(reflect.ValueOf(key))
	if number(field) && !byNumber || field.Kind() == reflect.String && byNumber {
		return fmt.Errorf("%w: field %s has the type %s, and the keys have the type %T: "+
			"use keys of the type of the field", gorm.ErrInvalidData, f.Name, f.FieldType, key)
	}
	return nil
}

// rollback ends the transaction that the caller had open, because of err.
func rollback(db *gorm.DB, err error) {
	switch t := gormkeys.InnerTx(db.Statement.ConnPool).(type) {
	case interface{ GiveUp(err error) }: // gormlock's
		t.GiveUp(err)
	case gorm.TxCommitter:
		_ = t.Rollback() // if it fails, the connection is gone
	}
}

package stock

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/internal/gormkeys"
)

// take takes what some calls want from the row, by the UPDATE of [Decrement], and tells them what is
// left. enough is false if the row has less, does not match the condition, or is not there.
func (b *batch) take(tx *gorm.DB, calls []*call) (enough bool, err error) {
	d := &decrement{column: clause.Column{Name: b.column.DBName}, n: sum(calls), dialect: b.dialect, key: b.keyEq(), literal: b.literals}
	q := tx.Model(reflect.New(b.rows.ModelType).Interface())
	if len(b.where) > 0 {
		q = q.Where(b.condition(q))
	}
	if err := d.run(q); err != nil || d.matched == 0 {
		return false, err
	}
	left := d.left
	for _, c := range slices.Backward(calls) {
		c.left = left
		left += c.n
	}
	return true, nil
}

func (b *batch) keyEq() *clause.Eq {
	value := b.lane.key
	if b.literals {
		value = literal(value)
	}
	return &clause.Eq{Column: clause.Column{Table: clause.CurrentTable, Name: b.key.DBName}, Value: value}
}

// condition is that of [If], in parentheses.
func (b *batch) condition(q *gorm.DB) gormkeys.Enclosed {
	return gormkeys.Enclosed(q.Statement.BuildCondition(b.where[0], b.where[1:]...))
}

// lockRow locks the row and returns what it has.
func (b *batch) lockRow(tx *gorm.DB) (left int64, err error) {
	if b.dialect == "sqlite" { // it has no FOR UPDATE, but an UPDATE takes the only lock
		quote := tx.Statement.Quote
		column := quote(b.column.DBName)
		text := fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s = ?", quote(b.rows.Table), column, column, quote(b.key.DBName))
		if err := tx.Exec(text, b.lane.key).Error; err != nil {
			return 0, err
		}
	}
	q := tx.Model(reflect.New(b.rows.ModelType).Interface()).
		Clauses(clause.Locking{Strength: clause.LockingStrengthUpdate}).Where(*b.keyEq())
	column := clause.Column{Name: b.column.DBName}
	if len(b.where) > 0 {
		q = q.Select("? AS rest, CASE WHEN ? THEN 1 ELSE 0 END AS open", column, b.condition(q))
	} else {
		q = q.Select("? AS rest, 1 AS open", column)
	}
	var row struct{ Rest, Open int64 }
	switch q = q.Scan(&row); {
	case q.Error != nil:
		return 0, q.Error
	case q.RowsAffected == 0:
		return 0, gorm.ErrRecordNotFound
	case row.Open == 0:
		return 0, ErrClosed
	}
	return row.Rest, nil
}

// insert stores clones of the orders of some calls. Those that may share a statement do. The numbers
// of rows are round, so that there are few statements to prepare. The orders are sorted, so that two
// batches insert equal unique values in one order and do not deadlock.
func (b *batch) insert(tx *gorm.DB, calls []*call) error {
	b.storing = true
	all := make([]insertion, len(calls))
	for i, c := range calls {
		all[i].call = c
		c.stored, all[i].alone = b.clone(c.order)
		all[i].class = b.classOf(c.stored)
	}
	slices.SortStableFunc(all, func(x, y insertion) int {
		return cmp.Or(cmp.Compare(x.class, y.class), cmp.Compare(x.unique, y.unique))
	})
	merges, err := b.merges(tx, len(calls))
	for len(all) > 0 && err == nil {
		n := 1
		for merges && !all[0].alone && n < len(all) && !all[n].alone && all[n].class == all[0].class {
			n++
		}
		n = rounded(n, 3)
		err = b.create(tx, all[:n])
		all = all[n:]
	}
	b.storing = err != nil
	return err
}

// insertion is the order of a call that is about to be stored.
type insertion struct {
	*call
	alone bool   // in a statement of its own
	class string // the same for orders that may share one
}

// classOf notes which columns an order leaves to the database, the key among them. SQLite has no
// DEFAULT in VALUES, and GORM counts the ids of a statement from the first one.
func (b *batch) classOf(order reflect.Value) string {
	class := make([]byte, len(b.orders.FieldsWithDefaultDBValue))
	for i, f := range b.orders.FieldsWithDefaultDBValue {
		if class[i] = '1'; zero(f.ValueOf(b.ctx, order.Elem())) {
			class[i] = '0'
		}
	}
	return string(class)
}

func zero(_ any, zero bool) bool { return zero }

// merges reports whether orders may share a statement. Without RETURNING, GORM counts their ids, and
// the server may count in other steps: those of a cluster, which change while it runs.
func (b *batch) merges(tx *gorm.DB, n int) (bool, error) {
	key := b.orders.PrioritizedPrimaryField
	if !b.guesses || n == 1 || key != nil && !key.HasDefaultValue && len(relations(b.orders)) == 0 {
		return true, nil
	}
	var step int64
	err := tx.Raw("SELECT @@auto_increment_increment").Scan(&step).Error
	return key != nil && step == key.AutoIncrementIncrement, err
}

// create stores orders in one statement, and their associations in one for each relation.
func (b *batch) create(tx *gorm.DB, all []insertion) error {
	var created *gorm.DB
	if len(all) == 1 {
		created = tx.Create(all[0].stored.Interface())
	} else {
		orders := reflect.New(reflect.SliceOf(reflect.PointerTo(b.orders.ModelType)))
		for _, x := range all {
			orders.Elem().Set(reflect.Append(orders.Elem(), x.stored))
		}
		created = tx.Set(mergedKey, true).Create(orders.Interface())
	}
	if created.Error == nil && created.RowsAffected != int64(len(all)) {
		return fmt.Errorf("the database stored %d of %d orders without an error (a trigger or a rule)", created.RowsAffected, len(all))
	}
	return created.Error
}

// mergedKey is in the settings of a statement that stores the orders of several callers. GORM copies
// it to those of associations.
const mergedKey = "onelane:stock merged"

// watchAssociations registers a callback. It fails a statement of several callers if the database
// stored fewer rows than it got. GORM would deal out their ids in order, to others.
func watchAssociations(db *gorm.DB) error {
	const name = "onelane:stock"
	if db.Callback().Create().Get(name) != nil {
		return nil
	}
	return db.Callback().Create().After("gorm:create").Register(name, func(tx *gorm.DB) {
		if _, merged := tx.Statement.Settings.Load(mergedKey); !merged || tx.Error != nil {
			return
		}
		if c, ok := tx.Statement.Clauses["ON CONFLICT"].Expression.(clause.OnConflict); ok && c.DoNothing {
			return // these have their keys
		}
		given := tx.Statement.ReflectValue
		if given.Kind() == reflect.Slice && tx.RowsAffected != int64(given.Len()) {
			_ = tx.AddError(fmt.Errorf("table %q: the database stored %d of %d rows", tx.Statement.Table, tx.RowsAffected, given.Len()))
		}
	})
}

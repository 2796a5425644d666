package stock

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// take takes n from the row by the UPDATE of [Decrement], and returns what is left. enough is false
// if the row has less, does not match the condition, or is not there.
func (b *batch) take(tx *gorm.DB, n int64) (left int64, enough bool, err error) {
	d := &decrement{column: clause.Column{Name: b.column.DBName}, n: n, dialect: b.dialect}
	d.key = &clause.Eq{Column: clause.Column{Table: clause.CurrentTable, Name: b.key.DBName}, Value: b.lane.key}
	q := tx.Model(reflect.New(b.rows.ModelType).Interface())
	if err := d.run(b.matching(q)); err != nil {
		return 0, false, err
	}
	return d.left, d.matched == 1, nil
}

// matching adds the condition of [If], in parentheses.
func (b *batch) matching(q *gorm.DB) *gorm.DB {
	if len(b.where) == 0 {
		return q
	}
	return q.Where(enclosed(q.Statement.BuildCondition(b.where[0], b.where[1:]...)))
}

// lockRow locks the row and returns what it has. On PostgreSQL, statements that look at orders are
// planned anew from then on.
func (b *batch) lockRow(tx *gorm.DB, looks bool) (int64, error) {
	left, err := b.lockedLeft(tx, looks)
	return left, failedAt(atRow, err)
}

func (b *batch) lockedLeft(tx *gorm.DB, looks bool) (int64, error) {
	if b.dialect == "sqlite" { // it has no FOR UPDATE, but an UPDATE takes the only lock
		quoted := tx.Statement.Quote(b.column.DBName)
		text := fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s = ?", tx.Statement.Quote(b.rows.Table), quoted, quoted,
			tx.Statement.Quote(b.key.DBName))
		if err := tx.Exec(text, b.lane.key).Error; err != nil {
			return 0, err
		}
	}
	found := b.readRow(tx, looks, true)
	if len(found.left) == 0 && found.err == nil {
		closed := b.readRow(tx, false, false)
		switch {
		case closed.err != nil:
			return 0, closed.err
		case len(closed.left) == 0:
			return 0, gorm.ErrRecordNotFound
		}
		return 0, ErrClosed
	}
	if found.err != nil {
		return 0, found.err
	}
	return found.left[0], nil
}

type rowRead struct {
	left []int64
	err  error
}

// readRow reads the column and locks the row.
func (b *batch) readRow(tx *gorm.DB, looks, conditions bool) (r rowRead) {
	columns := []clause.Column{{Name: b.column.DBName}}
	if looks && b.dialect == "postgres" {
		// A plan from when the table was empty is kept for ever, and is thousands of times as slow.
		columns = append(columns, clause.Column{Name: "set_config('plan_cache_mode', 'force_custom_plan', true)", Raw: true})
	}
	q := tx.Model(reflect.New(b.rows.ModelType).Interface()).
		Clauses(clause.Locking{Strength: clause.LockingStrengthUpdate}, clause.Select{Columns: columns}).
		Where(clause.Eq{Column: clause.Column{Table: clause.CurrentTable, Name: b.key.DBName}, Value: b.lane.key})
	if conditions {
		q = b.matching(q)
	}
	rows, err := q.Rows()
	if err != nil {
		r.err = err
		return r
	}
	defer rows.Close()
	for rows.Next() {
		var value, ignored any
		into := []any{&value, &ignored}
		if err := rows.Scan(into[:len(columns)]...); err != nil {
			r.err = err
			return r
		}
		left, err := whole(value)
		if err != nil {
			r.err = err
			return r
		}
		r.left = append(r.left, left)
	}
	r.err = errors.Join(rows.Err(), rows.Close())
	return r
}

// insert stores copies of the orders of some calls. Those that may share a statement do.
func (b *batch) insert(tx *gorm.DB, calls []int) error {
	groups, alone := b.groups(calls)
	if b.guesses && len(calls) > len(alone) && b.stepMatters() {
		step, err := b.idStep(tx)
		if err != nil {
			return err
		}
		if field := b.orders.PrioritizedPrimaryField; field == nil || step != field.AutoIncrementIncrement {
			alone, groups = calls, nil // GORM would count the ids wrongly
		}
	}
	for _, group := range groups {
		b.sort(group)
		if err := b.create(tx, group); err != nil {
			return err
		}
	}
	for _, i := range alone {
		if err := b.create(tx, []int{i}); err != nil {
			return err
		}
	}
	return nil
}

// create stores orders in one statement, and their associations in one for each relation.
func (b *batch) create(tx *gorm.DB, calls []int) error {
	orders := reflect.MakeSlice(reflect.SliceOf(reflect.PointerTo(b.orders.ModelType)), 0, len(calls))
	for _, i := range calls {
		order := b.cloner.clone(b.calls[i].order)
		b.fates[i].stored = order
		orders = reflect.Append(orders, order)
	}
	into := reflect.New(orders.Type())
	into.Elem().Set(orders)
	q, dest := tx, into.Interface()
	if len(calls) == 1 {
		dest = orders.Index(0).Interface()
	} else {
		q = tx.Set(mergedKey, true)
	}
	created := q.Create(dest)
	if created.Error != nil {
		return created.Error
	}
	if created.RowsAffected != int64(len(calls)) {
		return fmt.Errorf("the database stored %d of %d orders without an error (a trigger or a rule)", created.RowsAffected, len(calls))
	}
	return nil
}

// groups divides calls into those that may share an INSERT, and those whose order is stored alone.
func (b *batch) groups(calls []int) (groups [][]int, alone []int) {
	byClass := make(map[string]int)
	for _, i := range calls {
		class, merges := b.classOf(b.calls[i].order)
		if !merges {
			alone = append(alone, i)
			continue
		}
		g, ok := byClass[class]
		if !ok {
			g = len(groups)
			byClass[class] = g
			groups = append(groups, nil)
		}
		groups[g] = append(groups[g], i)
	}
	return groups, alone
}

// classOf returns the same text for orders that may share an INSERT. An order is alone if ON CONFLICT
// DO NOTHING may skip an association of it, or if one has its key set. GORM would deal out the
// returned ids to the associations of other orders.
func (b *batch) classOf(order reflect.Value) (class string, merges bool) {
	if b.cloner.deep && !b.mergesAssociations(b.orders, order.Elem(), make(map[any]bool)) {
		return "", false
	}
	var set []byte
	for _, f := range b.orders.FieldsWithDefaultDBValue {
		// SQLite has no DEFAULT in VALUES.
		if f != b.orders.PrioritizedPrimaryField && b.dialect != "sqlite" {
			continue
		}
		if _, zero := f.ValueOf(b.ctx, order.Elem()); zero {
			set = append(set, '0')
		} else {
			set = append(set, '1')
		}
	}
	return string(set), true
}

func (b *batch) mergesAssociations(s *schema.Schema, model reflect.Value, seen map[any]bool) bool {
	if model.CanAddr() {
		if seen[model.Addr().Interface()] {
			return true
		}
		seen[model.Addr().Interface()] = true
	}
	r := &s.Relationships
	for _, rel := range slices.Concat(r.BelongsTo, r.Many2Many, r.HasOne, r.HasMany) {
		if _, zero := rel.Field.ValueOf(b.ctx, model); zero {
			continue
		}
		owned := rel.Type == schema.HasOne || rel.Type == schema.HasMany
		for _, e := range structsIn(rel.Field.ReflectValueOf(b.ctx, model)) {
			for _, pk := range rel.FieldSchema.PrimaryFields {
				_, zero := pk.ValueOf(b.ctx, e)
				if !owned && zero || owned && !zero && pk.HasDefaultValue {
					return false
				}
			}
			if !b.mergesAssociations(rel.FieldSchema, e, seen) {
				return false
			}
		}
	}
	return true
}

// structsIn returns the models in a field: a struct, or a slice of them, or pointers to either.
func structsIn(v reflect.Value) (all []reflect.Value) {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		return []reflect.Value{v}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			all = append(all, structsIn(v.Index(i))...)
		}
	}
	return all
}

// stepMatters reports whether GORM counts ids for an INSERT of several orders.
func (b *batch) stepMatters() bool {
	f := b.orders.PrioritizedPrimaryField
	return b.cloner.deep || f != nil && f.HasDefaultValue
}

// idStep reads how far apart the server's next ids are. Galera changes that while it runs.
func (b *batch) idStep(tx *gorm.DB) (step int64, err error) {
	err = tx.Raw("SELECT @@auto_increment_increment").Row().Scan(&step)
	return step, err
}

// sort orders calls by their unique values, so that two batches insert them in one order and do not
// deadlock.
func (b *batch) sort(calls []int) {
	slices.SortStableFunc(calls, func(i, j int) int { return compareValues(b.calls[i].values, b.calls[j].values) })
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

package optimistic

import (
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/internal/gormkeys"
)

// readRow is a row that was read: its model has its primary key.
type readRow struct {
	model   reflect.Value
	id      string // of the primary key
	key     []clause.Expression
	version int64
}

// rowsRead returns the rows of the models that have a primary key, in the versions that they were
// read in.
func (w *write) rowsRead(models reflect.Value) (rows []readRow) {
	if on, _ := w.s.Settings.Load(gormkeys.AnyVersion); on != nil {
		return nil
	}
	for _, m := range structsOf(models) {
		if m.Type() != w.s.Schema.ModelType {
			continue
		}
		id, key, keyed := w.primaryKey(m)
		row := readRow{model: m, id: id, key: key, version: w.versionIn(m)}
		switch {
		case keyed && !m.CanAddr():
			w.refuse(gorm.ErrInvalidValue, "a copy of a model cannot get its new version: "+
				"write the model by its pointer, db.Updates(&m) or db.Model(&m)")
		case keyed:
			rows = append(rows, row)
		case row.version != 0:
			w.refuse(gorm.ErrPrimaryKeyRequired, "a model with a version needs its primary key")
		}
	}
	if len(rows) > 0 {
		w.requireManaged()
	}
	return rows
}

func (w *write) update() {
	s := w.s
	rows := w.rowsRead(s.ReflectValue) // before GORM writes into the models what is assigned
	given, ok := s.Clauses["SET"]
	set, known := given.Expression.(clause.Set)
	written := given.Builder != nil // by a stock.Decrement
	if column, _ := s.Settings.Load(gormkeys.AnyVersion); written && column == w.field.DBName {
		w.refuse(gorm.ErrInvalidData, "column %q is a Version, which only rises", w.field.DBName)
	}
	if ok && !known && !written {
		w.refuse(gorm.ErrNotImplemented, "a %T cannot be extended by the version: "+
			"use a clause.Set", given.Expression)
	} else if !ok && w.db.Error == nil {
		// GORM adds these clauses before it looks for a SET, and those of other fields may assign
		// columns, as of who changed the row.
		for _, c := range s.Schema.UpdateClauses {
			s.AddClause(c)
		}
		set = callbacks.ConvertToAssignments(s)
	}
	if !w.mayAssign(rows, set) {
		w.refuse(gorm.ErrInvalidData, "column %q is compared and raised, not assigned: "+
			"leave it out, and write by db.Model(&m), where m has its primary key and the version "+
			"that was read", w.field.DBName)
	}
	if len(set) > 0 || written {
		isVersion := func(a clause.Assignment) bool { return a.Column.Name == w.field.DBName }
		raised := append(slices.DeleteFunc(slices.Clone(set), isVersion), w.increment())
		s.Clauses["SET"] = clause.Clause{Name: "SET", Expression: raised, Builder: given.Builder}
	}
	w.compare(rows, func() (raises bool) { w.next(); return true })
	if delete(s.Clauses, "SET"); ok {
		s.Clauses["SET"] = given
	}
}

func (w *write) delete() {
	s := w.s
	rows := w.rowsRead(s.ReflectValue)
	if len(rows) == 0 && s.Model != nil && !w.writesModel() {
		rows = w.rowsRead(reflect.ValueOf(s.Model))
	}
	// A soft delete is an UPDATE whose SET keeps this; a DELETE has no SET.
	raise := clause.Expr{SQL: ", ? = ?", Vars: []any{w.increment().Column, w.increment().Value}}
	s.Clauses["SET"] = clause.Clause{AfterExpression: raise}
	defer delete(s.Clauses, "SET")
	w.compare(rows, func() (raises bool) {
		w.next()
		return s.Clauses["SET"].Expression != nil
	})
}

func (w *write) increment() clause.Assignment {
	next := clause.Expr{SQL: "COALESCE(?, 0) + 1", Vars: []any{column(w.field.DBName)}}
	return clause.Assignment{Column: clause.Column{Name: w.field.DBName}, Value: next}
}

// mayAssign reports whether the assigned values have no version other than the models'. The values
// may have the version of the models themselves, or come from a struct without a version.
func (w *write) mayAssign(rows []readRow, set []clause.Assignment) bool {
	for _, a := range set {
		if a.Column.Name != w.field.DBName || w.writesModel() {
			continue
		}
		version, ok := integer(a.Value)
		missing := version == 0 && pointedAt(reflect.ValueOf(w.s.Dest)).Kind() == reflect.Struct
		if !missing && (!ok || len(rows) != 1 || rows[0].version != version) {
			return false
		}
	}
	return true
}

// writesModel reports whether a statement writes what is in the model itself.
func (w *write) writesModel() bool {
	dest, model := reflect.ValueOf(w.s.Dest), reflect.ValueOf(w.s.Model)
	pointers := dest.Kind() == reflect.Pointer && model.Kind() == reflect.Pointer
	return pointers && dest.Pointer() == model.Pointer()
}

// compare sends a statement by send, under the condition that the rows are in their versions, and
// gives the models their new ones. send reports whether the statement raises them.
func (w *write) compare(rows []readRow, send func() (raises bool)) {
	distinct := make(map[string]bool) // several models may be of one row
	for _, r := range rows {
		distinct[fmt.Sprint(r.version, r.id)] = true
	}
	w.allOrNothing(len(distinct), func() {
		withdraw := w.demand(rows)
		raises := send()
		withdraw()
		if w.sent() && w.db.RowsAffected < int64(len(distinct)) {
			w.refuse(ErrStale, "%d of %d rows are in the version they were read in and match the other conditions",
				w.db.RowsAffected, len(distinct))
			w.affected(0) // what was written is undone
		}
		w.setVersions(rows, raises)
	})
}

// demand puts the versions into the statement's condition. The returned function takes them out: the
// caller may use the statement again, and the row has another version then.
func (w *write) demand(rows []readRow) (withdraw func()) {
	if len(rows) == 0 {
		return func() {}
	}
	var parts []clause.Expression
	for part := range slices.Chunk(rows, 100) { // SQLite refuses a thousand ORs in a row
		var or []clause.Expression
		for _, r := range part {
			or = append(or, clause.And(append(r.key, clause.And(w.is(r.version)))...))
		}
		parts = append(parts, clause.And(clause.Or(or...)))
	}
	exprs := []clause.Expression{clause.And(clause.Or(parts...))}
	if where, _ := w.s.Clauses["WHERE"].Expression.(clause.Where); len(where.Exprs) > 0 {
		exprs = append(exprs, gormkeys.Enclosed(where.Exprs)) // an Or in it must not bypass the versions
	}
	w.s.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: exprs}}
	return func() {
		where, _ := w.s.Clauses["WHERE"].Expression.(clause.Where)
		if len(where.Exprs) < 2 {
			delete(w.s.Clauses, "WHERE")
			return
		}
		w.s.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: where.Exprs[1:]}}
	}
}

func (w *write) is(version int64) clause.Expression {
	c := column(w.field.DBName)
	if version == 0 { // of before the column was there
		return clause.Or(clause.Eq{Column: c, Value: 0}, clause.Eq{Column: c, Value: nil})
	}
	return clause.Eq{Column: c, Value: version}
}

// setVersions gives the models of rows their versions after a statement that raises them or not.
func (w *write) setVersions(rows []readRow, raises bool) {
	_, returning := w.s.Clauses["RETURNING"]
	kept := make(map[any]bool) // by the pointers of the models
	for _, r := range rows {
		if id, _, _ := w.primaryKey(r.model); returning && id != r.id {
			continue // the database returned the rows in another order
		}
		kept[r.model.Addr().Interface()] = true
		version := r.version // GORM may have written another one into the model
		if raises && w.sent() {
			version++
		}
		w.setVersion(r.model, r.version, version)
	}
	if !returning || !raises { // a DELETE returns the versions that the rows had
		return
	}
	// The database returned the other models, each with its version. If that is rolled back, they
	// count as not read.
	for _, m := range structsOf(w.s.ReflectValue) {
		if m.CanAddr() && m.Type() == w.s.Schema.ModelType && !kept[m.Addr().Interface()] {
			w.setVersion(m, 0, w.versionIn(m))
		}
	}
}

package gormlock

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
	"gorm.io/gorm/utils"

	"github.com/onelane/onelane/internal/gormkeys"
)

// versions is what an update or delete asks of the versions of its rows.
type versions struct {
	field *schema.Field
	rows  []versionedRow
	want  int64 // rows, of which several models may be the same

	conditional bool // the statement has conditions of its own
}

type versionedRow struct {
	model   reflect.Value
	id      string
	key     []clause.Expression
	version int64
}

// versionsRead returns the rows of the models that have a primary key, in the versions that they
// were read in.
func versionsRead(db *gorm.DB, f *schema.Field, models reflect.Value) *versions {
	s := db.Statement
	where, _ := s.Clauses["WHERE"].Expression.(clause.Where)
	v := &versions{field: f, conditional: len(where.Exprs) > 0}
	if on, _ := s.Settings.Load(gormkeys.AnyVersion); on != nil {
		return v
	}
	seen, joined := make(map[string]bool), make(map[string]string)
	for _, m := range structsOf(models) {
		if m.Type() != s.Schema.ModelType {
			continue
		}
		id, values, keyed := primaryKey(s, m)
		row := versionedRow{model: m, id: id, version: versionIn(s, f, m)}
		for i, pk := range s.Schema.PrimaryFields {
			row.key = append(row.key, clause.Eq{Column: column(pk.DBName), Value: values[i]})
		}
		switch {
		case keyed && !m.CanAddr():
			refuse(db, gorm.ErrInvalidValue, "a copy of a model cannot get its new version: "+
				"write the model by its pointer, db.Updates(&m) or db.Model(&m)")
		case keyed:
			text := utils.ToStringKey(values...) // by which GORM knows a row
			if other, ok := joined[text]; ok && other != id {
				refuse(db, gorm.ErrInvalidData, "GORM takes two keys for one, as both are %q if their "+
					"parts are joined: write these rows one by one", text)
			}
			joined[text] = id
			if was, ok := savedIn(s)[savedRow{s.Table, id}]; ok && was == row.version {
				refuse(db, gorm.ErrInvalidData, "two models of one row are saved, and the first one makes "+
					"the second one stale: keep one, or let all fields point to it")
			}
			v.rows = append(v.rows, row)
			seen[fmt.Sprint(row.version, id)] = true
		case row.version != 0:
			refuse(db, gorm.ErrPrimaryKeyRequired, "a model with a version needs its primary key")
		}
	}
	if v.want = int64(len(seen)); v.want > 0 {
		managed(db)
	}
	return v
}

// primaryKey returns a model's primary key, and a text of it that no other key has. It is keyed if
// a part of it is set; then each part counts.
func primaryKey(s *gorm.Statement, m reflect.Value) (id string, values []any, keyed bool) {
	for _, pk := range s.Schema.PrimaryFields {
		value, zero := pk.ValueOf(s.Context, m)
		keyed = keyed || !zero
		values = append(values, value)
		id += strconv.Quote(utils.ToStringKey(value))
	}
	return id, values, keyed
}

// mayAssign reports whether what is to be written has no version other than the models'. It may
// have the version of the models themselves, or come from a struct that has none.
func (v *versions) mayAssign(s *gorm.Statement, set []clause.Assignment) bool {
	for _, a := range set {
		if a.Column.Name != v.field.DBName || writesModel(s) {
			continue
		}
		version, ok := integer(a.Value)
		missing := version == 0 && pointedAt(reflect.ValueOf(s.Dest)).Kind() == reflect.Struct
		if !missing && (!ok || len(v.rows) != 1 || v.rows[0].version != version) {
			return false
		}
	}
	return true
}

// writesModel reports whether a statement writes what is in the model itself.
func writesModel(s *gorm.Statement) bool {
	dest, model := reflect.ValueOf(s.Dest), reflect.ValueOf(s.Model)
	pointers := dest.Kind() == reflect.Pointer && model.Kind() == reflect.Pointer
	return pointers && dest.Pointer() == model.Pointer()
}

func updateVersioned(db *gorm.DB, f *schema.Field, fn func(*gorm.DB)) {
	s := db.Statement
	v := versionsRead(db, f, s.ReflectValue) // before GORM writes into the models what is assigned
	given, ok := s.Clauses["SET"]
	set, known := given.Expression.(clause.Set)
	written := given.Builder != nil // by a stock.Decrement
	if column, _ := s.Settings.Load(gormkeys.AnyVersion); written && column == f.DBName {
		refuse(db, gorm.ErrInvalidData, "column %q is a Version, which only rises", f.DBName)
	}
	if ok && !known && !written {
		refuse(db, gorm.ErrNotImplemented, "a %T cannot be extended by the version: "+
			"use a clause.Set", given.Expression)
	} else if !ok && db.Error == nil {
		// GORM adds these clauses before it looks for a SET, and those of other fields may assign
		// columns, as of who changed the row.
		for _, c := range s.Schema.UpdateClauses {
			s.AddClause(c)
		}
		set = callbacks.ConvertToAssignments(s)
	}
	if !v.mayAssign(s, set) {
		refuse(db, gorm.ErrInvalidData, "column %q is compared and raised, not assigned: "+
			"leave it out, and write by db.Model(&m), where m has its primary key and the version "+
			"that was read", f.DBName)
	}
	if len(set) > 0 || written {
		raised := append(without(set, f), increment(f))
		s.Clauses["SET"] = clause.Clause{Name: "SET", Expression: raised, Builder: given.Builder}
		defer v.demand(db)()
	}
	fn(db)
	if delete(s.Clauses, "SET"); ok {
		s.Clauses["SET"] = given
	}
	v.check(db, true)
}

func deleteVersioned(db *gorm.DB, f *schema.Field, fn func(*gorm.DB)) {
	s := db.Statement
	v := versionsRead(db, f, s.ReflectValue)
	if len(v.rows) == 0 && s.Model != nil && !writesModel(s) {
		v = versionsRead(db, f, reflect.ValueOf(s.Model))
	}
	defer v.demand(db)()
	// A soft delete is an UPDATE whose SET keeps this; a DELETE has no SET.
	raise := clause.Expr{SQL: ", ? = ?", Vars: []any{increment(f).Column, increment(f).Value}}
	s.Clauses["SET"] = clause.Clause{AfterExpression: raise}
	defer delete(s.Clauses, "SET")
	fn(db)
	v.check(db, s.Clauses["SET"].Expression != nil)
}

func (v *versions) is(version int64) clause.Expression {
	c := column(v.field.DBName)
	if version == 0 { // of before the column was there
		return clause.Or(clause.Eq{Column: c, Value: 0}, clause.Eq{Column: c, Value: nil})
	}
	return clause.Eq{Column: c, Value: version}
}

// demand puts the versions into the statement's condition. The returned function takes them out:
// the caller may use the statement again, and the row has another version then.
func (v *versions) demand(db *gorm.DB) (withdraw func()) {
	if len(v.rows) == 0 {
		return func() {}
	}
	s := db.Statement
	if _, open := transactionOf(s.ConnPool); v.want > 1 && !open && !db.DryRun {
		refuse(db, ErrNoTransaction, "several rows with a Version are written all or none, "+
			"which needs a transaction")
	}
	var rows []clause.Expression
	for part := range slices.Chunk(v.rows, 100) { // SQLite refuses a thousand ORs in a row
		var or []clause.Expression
		for _, r := range part {
			or = append(or, clause.And(append(r.key, clause.And(v.is(r.version)))...))
		}
		rows = append(rows, clause.And(clause.Or(or...)))
	}
	exprs := []clause.Expression{clause.And(clause.Or(rows...))}
	if where, _ := s.Clauses["WHERE"].Expression.(clause.Where); len(where.Exprs) > 0 {
		exprs = append(exprs, enclosed(where.Exprs)) // an Or in it must not bypass the versions
	}
	s.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: exprs}}
	return func() {
		where, _ := s.Clauses["WHERE"].Expression.(clause.Where)
		if len(where.Exprs) < 2 {
			delete(s.Clauses, "WHERE")
			return
		}
		s.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: where.Exprs[1:]}}
	}
}

// check finds stale rows by the number of those that were written, and gives the models their
// versions.
func (v *versions) check(db *gorm.DB, raises bool) {
	s := db.Statement
	if db.Error == nil && !db.DryRun && s.SQL.Len() > 0 && db.RowsAffected < v.want {
		instrumentsOf(db).stale.Add(s.Context, 1)
		also := ""
		if v.conditional {
			also = " and match the other conditions of the statement"
		}
		refuse(db, ErrStale, "%d of %d rows are in the version they were read in%s", db.RowsAffected, v.want, also)
		db.RowsAffected = 0 // what was written is undone
	}
	raised := raises && db.Error == nil && !db.DryRun && s.SQL.Len() > 0
	_, returning := s.Clauses["RETURNING"]
	kept := make(map[any]bool) // by the pointers of the models
	for _, r := range v.rows {
		if id, _, _ := primaryKey(s, r.model); returning && len(v.rows) > 1 && id != r.id {
			continue // the database returned the rows in another order
		}
		kept[r.model.Addr().Interface()] = true
		version := r.version // GORM may have written another one into the model
		if raised {
			version++
		}
		if saved := savedIn(s); saved != nil && raised {
			saved[savedRow{s.Table, r.id}] = r.version
		}
		setVersion(db, v.field, r.model, r.version, version)
	}
	if !returning || !raises { // a DELETE returns the versions that the rows had
		return
	}
	// The database returned the other models, each with its version. If that is rolled back, they
	// count as not read.
	for _, m := range structsOf(s.ReflectValue) {
		if m.CanAddr() && m.Type() == s.Schema.ModelType && !kept[m.Addr().Interface()] {
			setVersion(db, v.field, m, 0, versionIn(s, v.field, m))
		}
	}
}

// enclosed writes conditions in parentheses. GORM writes none around a text with an OR beside a
// line break or a tab. A condition that this package adds would then hold for a part of the text
// only.
type enclosed []clause.Expression

// Build implements clause.Expression.
func (e enclosed) Build(b clause.Builder) {
	_ = b.WriteByte('(')
	clause.Where{Exprs: slices.Clone(e)}.Build(b) // which sorts them
	_ = b.WriteByte(')')
}

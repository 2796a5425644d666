package gormlock

import (
	"fmt"
	"reflect"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// versions is what a write asks of the versions of its rows.
type versions struct {
	field   *schema.Field
	rows    []versionedRow // those of models with a primary key
	given   []int64        // versions without a row, or of what is to be written
	want    int64          // rows
	updates bool
	ownSet  bool
}

type versionedRow struct {
	model   reflect.Value
	key     []clause.Expression
	version int64
}

// expected reads from the models in a value, and from what is to be written, which versions the rows must be in.
func expected(db *gorm.DB, f *schema.Field, models reflect.Value) *versions {
	s, v := db.Statement, &versions{field: f}
	if on, _ := s.Settings.Load(unversionedBy); on != nil {
		return v
	}
	seen := make(map[string]bool)
	for _, m := range structsOf(models) {
		if m.Type() != s.Schema.ModelType {
			continue
		}
		row, id := versionedRow{model: m, version: versionIn(s, f, m)}, ""
		for _, pk := range s.Schema.PrimaryFields {
			if value, zero := pk.ValueOf(s.Context, m); !zero {
				row.key = append(row.key, clause.Eq{Column: column(pk.DBName), Value: value})
				id += fmt.Sprintf("%v\x00", value)
			}
		}
		switch {
		case len(row.key) > 0:
			v.rows = append(v.rows, row)
			if !seen[id] {
				v.want++
			}
			seen[id] = true
		case row.version != 0:
			v.given = append(v.given, row.version)
		}
	}
	if written := writtenVersion(s, f); written != 0 {
		v.given = append(v.given, written)
	}
	if len(v.given) > 0 {
		v.want = max(v.want, 1)
	}
	return v
}

func versionIn(s *gorm.Statement, f *schema.Field, model reflect.Value) int64 {
	value, _ := f.ValueOf(s.Context, model)
	return number(value)
}

// number is a version as it stands in a model, a map or JSON; 0 if it is none.
func number(value any) int64 {
	switch v := reflect.Indirect(reflect.ValueOf(value)); {
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return int64(v.Uint())
	case v.CanFloat():
		return int64(v.Float())
	}
	return 0
}

// sameModel says whether a statement writes its model itself.
func sameModel(s *gorm.Statement) bool {
	dest, model := reflect.ValueOf(s.Dest), reflect.ValueOf(s.Model)
	return dest.Kind() == reflect.Pointer && model.Kind() == reflect.Pointer && dest.Pointer() == model.Pointer()
}

// writtenVersion is the version in what an update is to write, where that is not the model.
func writtenVersion(s *gorm.Statement, f *schema.Field) int64 {
	if sameModel(s) {
		return 0
	}
	switch dest := reflect.Indirect(reflect.ValueOf(s.Dest)); {
	case dest.Kind() == reflect.Struct && dest.Type() == s.Schema.ModelType:
		return versionIn(s, f, dest)
	case dest.Kind() == reflect.Map && dest.Type().Key().Kind() == reflect.String:
		for _, name := range []string{f.DBName, f.Name} {
			if value := dest.MapIndex(reflect.ValueOf(name).Convert(dest.Type().Key())); value.IsValid() {
				return number(value.Interface())
			}
		}
	}
	return 0
}

func (v *versions) is(version int64) clause.Expression {
	c := column(v.field.DBName)
	if version == 0 { // of before the column was there
		return clause.Or(clause.Eq{Column: c, Value: 0}, clause.Eq{Column: c, Value: nil})
	}
	return clause.Eq{Column: c, Value: version}
}

// demand puts the versions into the statement's condition.
func (v *versions) demand(db *gorm.DB) {
	s := db.Statement
	where, _ := s.Clauses["WHERE"].Expression.(clause.Where)
	var exprs []clause.Expression
	var rows []clause.Expression
	for _, r := range v.rows {
		rows = append(rows, clause.And(append(r.key, clause.And(v.is(r.version)))...))
	}
	if len(rows) > 0 {
		exprs = append(exprs, clause.And(clause.Or(rows...)))
	}
	if len(rows) > 0 || len(where.Exprs) > 0 { // a version alone selects no row
		for _, version := range v.given {
			exprs = append(exprs, v.is(version))
		}
	}
	if len(exprs) == 0 {
		v.want = 0
		return
	}
	if _, open := transactionOf(s.ConnPool); v.want > 1 && !open && !db.DryRun {
		_ = db.AddError(fmt.Errorf("gormlock: table %q: several rows with a Version are written all or none, which needs a transaction: %w", s.Table, ErrNoTransaction))
	}
	if len(where.Exprs) > 0 { // one And, so that an Or in it does not go around what follows
		exprs = append(exprs, clause.And(where.Exprs...))
	}
	s.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: exprs}}
}

// check says whether the rows were in their versions, and gives the models the new ones. v may be nil.
func (v *versions) check(db *gorm.DB) {
	if v == nil {
		return
	}
	if v.ownSet {
		delete(db.Statement.Clauses, "SET")
	}
	if v.want == 0 || db.DryRun {
		return
	}
	stale := db.Error == nil && db.RowsAffected < v.want
	if stale {
		_ = db.AddError(fmt.Errorf("gormlock: table %q: %d of %d rows in the version they were read in: %w", db.Statement.Table, db.RowsAffected, v.want, ErrStale))
	}
	for _, r := range v.rows {
		version := r.version // which GORM may have overwritten
		if db.Error == nil && v.updates {
			version++
		}
		if r.model.CanAddr() {
			_ = db.AddError(v.field.Set(db.Statement.Context, r.model, version))
		}
	}
}

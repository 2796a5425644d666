package gormlock

import (
	"database/sql/driver"
	"fmt"
	"math"
	"reflect"
	"strconv"

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
	ownSet  bool // the SET clause is not the caller's
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
		row, id, found := versionedRow{model: m, version: versionIn(s, f, m)}, "", false
		for _, pk := range s.Schema.PrimaryFields {
			value, zero := pk.ValueOf(s.Context, m)
			found = found || !zero // of a key of several, each part counts then
			row.key = append(row.key, clause.Eq{Column: column(pk.DBName), Value: value})
			id += fmt.Sprintf("%v\x00", pointedAt(reflect.ValueOf(value)))
		}
		switch {
		case found:
			v.rows = append(v.rows, row)
			if !seen[id] {
				v.want++
			}
			seen[id] = true
		case row.version != 0:
			v.given = append(v.given, row.version)
		}
	}
	switch written, given, err := writtenVersion(s, f); {
	case err != nil:
		_ = db.AddError(fmt.Errorf("gormlock: table %q: column %q: %w: %w", s.Table, f.DBName, gorm.ErrInvalidData, err))
	case given:
		v.given = append(v.given, written)
	}
	if len(v.given) > 0 {
		v.want = max(v.want, 1)
	}
	return v
}

func versionIn(s *gorm.Statement, f *schema.Field, model reflect.Value) int64 {
	value, _ := f.ValueOf(s.Context, model)
	version := reflect.Indirect(reflect.ValueOf(value))
	switch {
	case version.CanInt():
		return version.Int()
	case version.CanUint():
		return int64(version.Uint())
	}
	return 0
}

// sameModel says whether a statement writes its model itself.
func sameModel(s *gorm.Statement) bool {
	dest, model := reflect.ValueOf(s.Dest), reflect.ValueOf(s.Model)
	return dest.Kind() == reflect.Pointer && model.Kind() == reflect.Pointer && dest.Pointer() == model.Pointer()
}

// writtenVersion is the version in what an update is to write, where that is not the model, if it has one. That of a
// struct must not be 0.
func writtenVersion(s *gorm.Statement, f *schema.Field) (version int64, given bool, err error) {
	if sameModel(s) {
		return 0, false, nil
	}
	switch dest := pointedAt(reflect.ValueOf(s.Dest)); {
	case dest.Kind() == reflect.Struct:
		parsed := &gorm.Statement{DB: s.DB}
		if parsed.Parse(s.Dest) != nil { // GORM has its own error for it
			return 0, false, nil
		}
		if field := parsed.Schema.LookUpField(f.DBName); field != nil {
			version = versionIn(s, field, dest)
		}
		return version, version != 0, nil
	case dest.Kind() == reflect.Map && dest.Type().Key().Kind() == reflect.String:
		for _, name := range []string{f.DBName, f.Name} {
			if value := dest.MapIndex(reflect.ValueOf(name).Convert(dest.Type().Key())); value.IsValid() {
				return number(value.Interface())
			}
		}
	}
	return 0, false, nil
}

// number is a version as it stands in a map, also one that was made of JSON; NULL is 0. An expression is none.
func number(value any) (n int64, given bool, err error) {
	v := pointedAt(reflect.ValueOf(value))
	if !v.IsValid() || v.Kind() == reflect.Pointer {
		return 0, true, nil
	}
	switch value := value.(type) {
	case clause.Expression:
		return 0, false, nil
	case driver.Valuer:
		plain, err := value.Value()
		if err != nil {
			return 0, false, err
		}
		return number(plain)
	}
	if v.CanFloat() && v.Float() == math.Trunc(v.Float()) {
		return int64(v.Float()), true, nil
	}
	text, err := keyPart(v.Interface())
	if err == nil {
		n, err = strconv.ParseInt(text, 10, 64)
	}
	return n, err == nil, err
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
		v.updates = v.updates || db.Statement.Clauses["SET"].Expression != nil // by a soft delete
		delete(db.Statement.Clauses, "SET")
	}
	if v.want == 0 || db.DryRun {
		return
	}
	stale := db.Error == nil && db.RowsAffected < v.want
	if stale {
		telemetryOf(db).staleWrite(db.Statement.Context)
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

package gormlock

import (
	"errors"
	"fmt"
	"reflect"

	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// ErrStale says that a write found its row in another version than it was read in: changed by others, or gone. Nothing
// was written. Read it again and decide anew.
var ErrStale = errors.New("the row was changed or deleted by others since it was read, or its version was not read with it")

// Version is the type of a column that counts the changes of its row, for optimistic locking: nobody waits, and a write
// that is based on an old read is an error.
//
//	type Stock struct {
//		ID      uint
//		Left    int64
//		Version gormlock.Version
//	}
//
//	db.Take(&s, 1)
//	err := db.Model(&s).Update("left", s.Left-1).Error // … WHERE id = 1 AND version = 3; errors.Is(err, gormlock.ErrStale)
//
// A create sets it to 1. Every update and soft delete by GORM adds 1 to it, whatever is selected or omitted. An update or
// delete of a model with its primary key, by Save, Update, Updates, UpdateColumn and Delete, with a struct or a map, needs
// the row to be in the model's version, else it is [ErrStale]; afterwards the model has the new one. A model whose version
// was not read (it is 0) is stale, unless the row's version is 0 or NULL too, as after the column was added. A version in
// what is to be written is not written but must be the row's too: of a struct if it is not 0, of a map always, as a number
// or its text. With a slice all rows must be in their versions, or none is written; this takes a transaction, which is
// GORM's default.
//
// An update or delete by conditions only, without a primary key in the model, asks for no version (unless one is given),
// and so does [Decrement]. It makes what others have read stale nevertheless. An upsert with DoUpdates does the same; one
// with UpdateAll, which would overwrite any version, is gorm.ErrNotImplemented: Save of a slice, and FullSaveAssociations.
// Save of a row that is not there is ErrStale, and does not create it. If the transaction is rolled back later, the
// models keep the versions it gave them: read them again.
//
// It needs the plugin of [New], which may have no Locker, and without it writes are [ErrNotRegistered]. Raw SQL, and
// models of the same table without the column, are not seen. (H. T. Kung, J. T. Robinson, "On optimistic methods for
// concurrency control", 1981.)
type Version int64

// CreateClauses implements schema.CreateClausesInterface.
func (Version) CreateClauses(f *schema.Field) []clause.Interface { return versioned(f) }

// UpdateClauses implements schema.UpdateClausesInterface.
func (Version) UpdateClauses(f *schema.Field) []clause.Interface { return versioned(f) }

// DeleteClauses implements schema.DeleteClausesInterface.
func (Version) DeleteClauses(f *schema.Field) []clause.Interface { return versioned(f) }

func versioned(f *schema.Field) []clause.Interface { return []clause.Interface{versionClause{f}} }

// versionClause marks a schema as one with a version. GORM adds it to each write, too late to write the statement: a
// soft delete may have been built before. So it only looks whether the plugin was there.
type versionClause struct{ field *schema.Field }

func (versionClause) Name() string               { return "" }
func (versionClause) Build(clause.Builder)       {}
func (versionClause) MergeClause(*clause.Clause) {}
func (versionClause) ModifyStatement(s *gorm.Statement) {
	if _, ok := s.Clauses[versionMark]; !ok {
		_ = s.AddError(fmt.Errorf("gormlock: table %q has a Version: %w", s.Table, ErrNotRegistered))
	}
}

const (
	versionMark   = "gormlock:version"     // in Statement.Clauses: the plugin has seen the statement
	unversionedBy = "gormlock:any version" // in Statement.Settings: the statement is right on any version
)

// versionOf returns the version field of the statement's model, or nil.
func versionOf(s *gorm.Statement) *schema.Field {
	if s.Schema == nil {
		return nil
	}
	for _, c := range s.Schema.UpdateClauses {
		if v, ok := c.(versionClause); ok {
			return v.field
		}
	}
	return nil
}

// withVersion wraps those of GORM's callbacks that write.
func withVersion(name string, fn func(*gorm.DB)) func(*gorm.DB) {
	prepare := map[string]func(*gorm.DB, *schema.Field) *versions{
		"gorm:create": createVersioned, "gorm:update": updateVersioned, "gorm:delete": deleteVersioned,
	}[name]
	if prepare == nil {
		return fn
	}
	return func(db *gorm.DB) {
		f := versionOf(db.Statement)
		if f == nil || db.Error != nil {
			fn(db)
			return
		}
		db.Statement.Clauses[versionMark] = clause.Clause{}
		defer delete(db.Statement.Clauses, versionMark)
		v := prepare(db, f)
		fn(db)
		v.check(db)
	}
}

func column(name string) clause.Column { return clause.Column{Table: clause.CurrentTable, Name: name} }

func increment(f *schema.Field) clause.Assignment {
	return clause.Assignment{Column: clause.Column{Name: f.DBName}, Value: clause.Expr{SQL: "COALESCE(?, 0) + 1", Vars: []any{column(f.DBName)}}}
}

func createVersioned(db *gorm.DB, f *schema.Field) *versions {
	s := db.Statement
	for _, row := range structsOf(s.ReflectValue) {
		switch _, zero := f.ValueOf(s.Context, row); {
		case !zero:
		case !row.CanAddr():
			_ = db.AddError(fmt.Errorf("gormlock: table %q: a model with a Version is created by its pointer: %w", s.Table, gorm.ErrInvalidValue))
		default:
			_ = db.AddError(f.Set(s.Context, row, 1))
		}
	}
	c, ok := s.Clauses["ON CONFLICT"]
	upsert, _ := c.Expression.(clause.OnConflict)
	switch {
	case !ok || upsert.DoNothing:
	case upsert.UpdateAll:
		_ = db.AddError(fmt.Errorf("gormlock: table %q has a Version, which an upsert of all columns would not compare: update the rows, or name what to update by DoUpdates: %w",
			s.Table, gorm.ErrNotImplemented))
	case len(upsert.DoUpdates) > 0:
		upsert.DoUpdates = append(without(upsert.DoUpdates, f), increment(f))
		c.Expression = upsert
		s.Clauses["ON CONFLICT"] = c
	}
	return nil
}

func updateVersioned(db *gorm.DB, f *schema.Field) *versions {
	s := db.Statement
	if s.SQL.Len() > 0 {
		return nil
	}
	v := expected(db, f, s.ReflectValue) // before GORM writes what is set into the model
	v.updates = true
	if given, ok := s.Clauses["SET"]; ok {
		set, _ := given.Expression.(clause.Set)
		given.Expression = append(without(set, f), increment(f))
		s.Clauses["SET"] = given
	} else {
		set := callbacks.ConvertToAssignments(s)
		if len(set) == 0 || db.Error != nil {
			return nil
		}
		s.AddClause(append(without(set, f), increment(f)))
		v.ownSet = true
	}
	v.demand(db)
	return v
}

func deleteVersioned(db *gorm.DB, f *schema.Field) *versions {
	s := db.Statement
	v := expected(db, f, s.ReflectValue)
	if len(v.rows) == 0 && s.Model != nil && !sameModel(s) {
		v = expected(db, f, reflect.ValueOf(s.Model))
	}
	v.demand(db)
	// A soft delete is an UPDATE with a SET of its own, which keeps this; one for good has none.
	s.Clauses["SET"] = clause.Clause{AfterExpression: clause.Expr{SQL: ", ? = ?", Vars: []any{increment(f).Column, increment(f).Value}}}
	v.ownSet = true
	return v
}

// without leaves out what is assigned to the version.
func without(set []clause.Assignment, f *schema.Field) clause.Set {
	var kept clause.Set
	for _, a := range set {
		if a.Column.Name != f.DBName {
			kept = append(kept, a)
		}
	}
	return kept
}

// structsOf returns the models in a value: a struct, or a slice of them.
func structsOf(v reflect.Value) []reflect.Value {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		return []reflect.Value{v}
	case reflect.Slice, reflect.Array:
		var all []reflect.Value
		for i := range v.Len() {
			if e := reflect.Indirect(v.Index(i)); e.Kind() == reflect.Struct {
				all = append(all, e)
			}
		}
		return all
	}
	return nil
}

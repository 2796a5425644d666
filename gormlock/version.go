package gormlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// ErrStale means that a row is not in the version that its model was read in. Others changed or
// deleted the row, or the version was not read with it. The statement wrote nothing. Its Before
// hooks have run, and what they wrote stays in your own transaction: roll back. If a hook returns
// ErrStale, that is about the hook's own statement: roll back. Read the row again and decide anew,
// in a new transaction, as [WithRetry] does. In the same one, MySQL and MariaDB may read the old
// row for ever, unless you read it with [ForUpdate].
//
// It is also the error if the row does not match another condition of the statement. Compare the
// values that you read instead: they hold as long as the version does.
var ErrStale = errors.New("the row was changed or deleted by others since it was read, " +
	"or its version was not read with it")

// Version is the type of a column that counts the changes of its row, for optimistic locking.
// Nobody waits, and a write based on an old read fails.
//
//	db.Take(&s, 1) // s is a Stock with a field "Version gormlock.Version"
//	err := db.Model(&s).Update("left", s.Left-1).Error // … WHERE id = 1 AND version = 3
//
// A model has the version that was read or written with it. A write of a model with its primary key
// needs the row in that version, and adds 1 to the versions of both. Otherwise the error is
// [ErrStale]. Then the statement wrote nothing: no element of a slice and no association. That
// holds in your own transaction, too. A rollback also takes the new versions back out of the
// models, but not the new values. Read again what you read or wrote inside the transaction.
//
// A create of a new model writes 1. If the model has a version, as a deleted one has, a create
// writes 1 more. Others may delete a row for good and create it anew under its key. If it reaches
// the version that you read, your write is not stale. Delete softly, or use a new key.
//
// Version 0 means "not read": the model is stale unless its row has 0 or NULL, as rows older than
// the column have. Write models by their pointers, and never assign a version: copies, as in
// gorm.G[T].Updates, and other versions in a map or struct are errors.
//
// Save of a slice, and saved associations, insert missing rows and update rows that change. A
// foreign key that is right already is no change. Save of one model with a primary key never
// creates a row. An upsert by OnConflict does not tell what it inserted: read its models again.
//
// Writes by conditions, DoUpdates and [stock.Decrement] raise the version without checking it. Raw SQL,
// db.Table without a model, and models without the column do not raise it: use db.Model. Nor does
// an OpUpdate of a many-to-many association in Set of gorm.G: GORM writes it by db.Table. Writes
// need the plugin of [New], else they are [ErrNotRegistered]; its Locker may be nil. In a
// transaction that did not begin through the plugin, writes of models are
// [ErrUnmanagedTransaction].
type Version int64

// CreateClauses implements schema.CreateClausesInterface.
func (Version) CreateClauses(f *schema.Field) []clause.Interface { return versioned(f) }

// UpdateClauses implements schema.UpdateClausesInterface.
func (Version) UpdateClauses(f *schema.Field) []clause.Interface { return versioned(f) }

// DeleteClauses implements schema.DeleteClausesInterface.
func (Version) DeleteClauses(f *schema.Field) []clause.Interface { return versioned(f) }

// GormValue implements gorm.Valuer. An INSERT of an unscoped statement has no CreateClauses. So its
// versions themselves make sure that there is a plugin, which prepares it.
func (v Version) GormValue(_ context.Context, db *gorm.DB) clause.Expr {
	_, err := registered(db)
	if _, insert := db.Statement.Clauses["INSERT"]; insert && err != nil {
		versionClause{}.ModifyStatement(db.Statement)
	}
	return clause.Expr{SQL: "?", Vars: []any{int64(v)}}
}

func versioned(f *schema.Field) []clause.Interface { return []clause.Interface{versionClause{f}} }

// versionClause marks a schema as versioned. GORM adds it to each write, but a soft delete may have
// built its statement before. So versionClause only checks that the plugin has prepared the
// statement.
type versionClause struct{ field *schema.Field }

func (versionClause) Name() string               { return "" }
func (versionClause) Build(clause.Builder)       {}
func (versionClause) MergeClause(*clause.Clause) {}
func (versionClause) ModifyStatement(s *gorm.Statement) {
	if _, ok := s.Clauses[versionMark]; !ok {
		err := fmt.Errorf("gormlock: table %q has a Version: %w", s.Table, ErrNotRegistered)
		_ = s.AddError(err)
	}
}

// versionMark is in Statement.Clauses if the plugin has prepared the statement.
const versionMark = "gormlock:version"

// versionOf returns the version field of a schema, or nil.
func versionOf(s *schema.Schema) (field *schema.Field, err error) {
	if s == nil {
		return nil, nil
	}
	for _, c := range s.UpdateClauses {
		v, ok := c.(versionClause)
		switch {
		case !ok || v.field.DBName == "":
		case field == nil && v.field.Creatable:
			field = s.FieldsByDBName[v.field.DBName]
		case field == nil || field.DBName != v.field.DBName:
			return nil, fmt.Errorf("gormlock: model %s: keep one field of type Version, "+
				"and no permissions on it: %w", s.Name, gorm.ErrInvalidField)
		}
	}
	return field, nil
}

// withVersion wraps GORM's callbacks as the models' versions need it.
func withVersion(name string, fn func(*gorm.DB)) func(*gorm.DB) {
	switch name {
	case "gorm:create":
		return writing(fn, createVersioned)
	case "gorm:update":
		return writing(fn, updateVersioned)
	case "gorm:delete":
		return writing(fn, deleteVersioned)
	case "gorm:save_before_associations":
		return func(db *gorm.DB) { allOrNothing(db); noteSaved(db); savingAssociations(db, fn) }
	case "gorm:save_after_associations":
		return func(db *gorm.DB) { savingAssociations(db, fn) }
	case "gorm:delete_before_associations":
		return func(db *gorm.DB) { allOrNothing(db); fn(db) }
	case "gorm:after_create", "gorm:after_update", "gorm:after_delete":
		return func(db *gorm.DB) { endAllOrNothing(db); endSaved(db); fn(db) }
	}
	return fn
}

// versionedWrite writes a statement whose model has a version by fn, a callback of GORM.
type versionedWrite func(db *gorm.DB, f *schema.Field, fn func(*gorm.DB))

func writing(fn func(*gorm.DB), write versionedWrite) func(*gorm.DB) {
	return func(db *gorm.DB) {
		f, err := versionOf(db.Statement.Schema)
		_ = db.AddError(err)
		if f == nil || db.Error != nil {
			fn(db)
			return
		}
		db.Statement.Clauses[versionMark] = clause.Clause{}
		defer delete(db.Statement.Clauses, versionMark)
		write(db, f, fn)
	}
}

// refuse fails a statement that has not failed.
func refuse(db *gorm.DB, err error, format string, args ...any) {
	if db.Error != nil {
		return
	}
	why := fmt.Sprintf(format, args...)
	_ = db.AddError(fmt.Errorf("gormlock: table %q: %s: %w", db.Statement.Table, why, err))
}

func column(name string) clause.Column {
	return clause.Column{Table: clause.CurrentTable, Name: name}
}

func increment(f *schema.Field) clause.Assignment {
	next := clause.Expr{SQL: "COALESCE(?, 0) + 1", Vars: []any{column(f.DBName)}}
	return clause.Assignment{Column: clause.Column{Name: f.DBName}, Value: next}
}

// without leaves out what is assigned to the version.
func without(set []clause.Assignment, f *schema.Field) clause.Set {
	isVersion := func(a clause.Assignment) bool { return a.Column.Name == f.DBName }
	return slices.DeleteFunc(slices.Clone(set), isVersion)
}

func versionIn(s *gorm.Statement, f *schema.Field, model reflect.Value) int64 {
	value, _ := f.ValueOf(s.Context, model)
	version, _ := integer(value)
	return version
}

func integer(value any) (n int64, ok bool) {
	switch v := pointedAt(reflect.ValueOf(value)); {
	case v.CanInt():
		return v.Int(), true
	case v.CanUint():
		return int64(v.Uint()), true
	}
	return 0, false
}

// structsOf returns the models in a value: a struct, or a slice of them.
func structsOf(v reflect.Value) []reflect.Value {
	return slices.DeleteFunc(elements(v), func(e reflect.Value) bool { return e.Kind() != reflect.Struct })
}

// elements returns what a value has: each element of a slice, or the value itself.
func elements(v reflect.Value) (all []reflect.Value) {
	v = pointedAt(v)
	if v.Kind() != reflect.Slice && v.Kind() != reflect.Array {
		return []reflect.Value{v}
	}
	for i := range v.Len() {
		all = append(all, pointedAt(v.Index(i)))
	}
	return all
}

func pointedAt(v reflect.Value) reflect.Value {
	for (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && !v.IsNil() {
		v = v.Elem()
	}
	return v
}

package optimistic

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
	"gorm.io/gorm/utils"

	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqlerr"
)

// ErrStale means that a row is not in the version that its model was read in. Others changed or
// deleted the row, or the version was not read with it. A row that does not match another condition
// of the statement gives this error, too.
//
//   - The statement wrote nothing. But Before hooks have run, and associations that GORM writes
//     first stay in your own transaction: roll back.
//   - If a hook returns ErrStale, that is about the hook's own statement: roll back.
//   - Read the row again and decide anew, in a new transaction, as gormlock.WithRetry does. In the
//     same one, MySQL and MariaDB may read the old row forever, unless you read it with
//     gormlock.ForUpdate.
//   - Instead of other conditions, compare the values that you read: they hold as long as the
//     version does.
var ErrStale = sqlerr.ErrStale

// Version is the type of a column that counts the changes of its row. A model has the version that
// was read or written with it. Update, Updates, Save and Delete of a model with its primary key
// need the row in that version. They add 1 to the versions of both. Otherwise the error is
// [ErrStale].
//
// What the version of a model and its row become:
//
//   - A create of a new model writes 1. If the model has a version, as a deleted one has, a create
//     writes 1 more.
//   - Version 0 means "not read": the model is stale unless its row has 0 or NULL, as rows older
//     than the column have.
//   - Writes by conditions and stock.Decrement raise the version without checking it.
//   - Raw SQL, db.Table without a model, and models without the column do not raise it: use
//     db.Model.
//   - Several rows are written all or none, for which a transaction must be open.
//   - A rollback takes the new versions back out of the models, but not the new values. Read again
//     what you read or wrote inside the transaction.
//
// These are errors:
//
//   - A version that you assign. Write models by their pointers: copies, as in gorm.G[T].Updates,
//     and other versions in a map or struct are errors. A copy of a model must not share an
//     embedded pointer to the struct that has the version: it would count as read anew.
//   - Writes that cannot compare versions match gorm.ErrNotImplemented. These are an OnConflict
//     that updates, INSERT OR REPLACE, and a write of a parent that changes a child which was read.
//   - Writes without the plugin of gormlock.New match gormkeys.ErrNotRegistered. The plugin's
//     Locker may be nil.
//   - In a transaction that did not begin through the plugin, writes of models match
//     gormkeys.ErrUnmanagedTransaction.
type Version int64

// CreateClauses implements schema.CreateClausesInterface.
func (Version) CreateClauses(f *schema.Field) []clause.Interface { return clausesOf(f) }

// UpdateClauses implements schema.UpdateClausesInterface.
func (Version) UpdateClauses(f *schema.Field) []clause.Interface { return clausesOf(f) }

// DeleteClauses implements schema.DeleteClausesInterface.
func (Version) DeleteClauses(f *schema.Field) []clause.Interface { return clausesOf(f) }

// GormValue implements gorm.Valuer. An INSERT of an unscoped statement has no CreateClauses. So its
// versions themselves make sure that the plugin has prepared it. Other tables may store them, too.
func (v Version) GormValue(_ context.Context, db *gorm.DB) clause.Expr {
	s := db.Statement
	ours := func(c clause.Interface) bool { _, ok := c.(versionClause); return ok }
	_, insert := s.Clauses["INSERT"]
	if insert && s.Schema != nil && slices.ContainsFunc(s.Schema.UpdateClauses, ours) {
		versionClause{}.ModifyStatement(s)
	}
	return clause.Expr{SQL: "?", Vars: []any{int64(v)}}
}

func clausesOf(f *schema.Field) []clause.Interface { return []clause.Interface{versionClause{f}} }

// versionClause is what the schema of a model keeps of its Version. The plugin of gormlock finds it
// there, and calls WrapWrite around GORM's own callbacks.
type versionClause struct{ field *schema.Field }

// preparedMark is in Statement.Clauses during WrapWrite.
const preparedMark = "optimistic:prepared"

func (versionClause) Name() string               { return "" }
func (versionClause) Build(clause.Builder)       {}
func (versionClause) MergeClause(*clause.Clause) {}

// ModifyStatement only checks that the plugin has prepared the statement. It would come too late to
// do so itself, as the clause of a soft delete may have built the SQL before.
func (versionClause) ModifyStatement(s *gorm.Statement) {
	if _, ok := s.Clauses[preparedMark]; !ok {
		_ = s.AddError(fmt.Errorf("optimistic: table %q has a Version: %w", s.Table, gormkeys.ErrNotRegistered))
	}
}

// WrapWrite implements gormkeys.WriteWrapper.
func (versionClause) WrapWrite(db *gorm.DB, step string, next func(*gorm.DB)) {
	s := db.Statement
	f, err := versionOf(s.Schema)
	if db.AddError(err) != nil {
		return
	}
	s.Clauses[preparedMark] = clause.Clause{}
	defer delete(s.Clauses, preparedMark)
	w := &write{db: db, s: s, field: f, next: func() { next(db) }}
	switch step {
	case "gorm:create":
		w.create()
	case "gorm:update":
		w.update()
	case "gorm:delete":
		w.delete()
	}
}

// versionOf returns the version field of a schema that has one.
func versionOf(s *schema.Schema) (field *schema.Field, err error) {
	for _, c := range s.UpdateClauses {
		v, ok := c.(versionClause)
		switch {
		case !ok:
		case field == nil && v.field.Creatable:
			field = s.FieldsByDBName[v.field.DBName]
		case field == nil || field.DBName != v.field.DBName:
			return nil, fmt.Errorf("optimistic: model %s: keep one field of type Version, "+
				"and no permissions on it: %w", s.Name, gorm.ErrInvalidField)
		}
	}
	return field, nil
}

// write is a statement that writes a table with a Version.
type write struct {
	db    *gorm.DB
	s     *gorm.Statement
	field *schema.Field
	next  func() // GORM's callback, which sends the statement
}

// refuse fails a statement that has not failed.
func (w *write) refuse(err error, format string, args ...any) {
	if w.db.Error == nil {
		_ = w.db.AddError(fmt.Errorf("optimistic: table %q: %s: %w", w.s.Table, fmt.Sprintf(format, args...), err))
	}
}

// sent reports whether the statement was sent and has not failed.
func (w *write) sent() bool { return w.db.Error == nil && !w.db.DryRun && w.s.SQL.Len() > 0 }

// affected sets how many rows were written, for gorm.WithResult, too.
func (w *write) affected(rows int64) {
	w.db.RowsAffected = rows
	if w.s.Result != nil {
		w.s.Result.RowsAffected = rows
	}
}

func (w *write) versionIn(model reflect.Value) int64 {
	value, _ := w.field.ValueOf(w.s.Context, model)
	version, _ := integer(value)
	return version
}

// set gives a model a version. A field that is a pointer gets a new one. A copy of the model has the
// old one, and stays as it was read.
func set(ctx context.Context, f *schema.Field, model reflect.Value, version int64) error {
	v := Version(version)
	return f.Set(ctx, model, &v)
}

// primaryKey returns a model's primary key as conditions, and a text of it that no other key has. It
// is keyed if a part of it is set; then each part counts.
func (w *write) primaryKey(m reflect.Value) (id string, key []clause.Expression, keyed bool) {
	for _, pk := range w.s.Schema.PrimaryFields {
		value, zero := pk.ValueOf(w.s.Context, m)
		keyed = keyed || !zero
		key = append(key, clause.Eq{Column: column(pk.DBName), Value: value})
		id += strconv.Quote(utils.ToStringKey(value))
	}
	return id, key, keyed
}

func column(name string) clause.Column {
	return clause.Column{Table: clause.CurrentTable, Name: name}
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

package gormlock

import (
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

func createVersioned(db *gorm.DB, f *schema.Field, fn func(*gorm.DB)) {
	s := db.Statement
	given, conflicts := s.Clauses["ON CONFLICT"]
	upsert, _ := given.Expression.(clause.OnConflict)
	_, saving := s.Settings.Load(savingKey)
	switch {
	case !conflicts:
	case saving || upsert.UpdateAll && onPrimaryKey(s, upsert):
		all, written := s.ReflectValue, settle(db, upsert)
		defer returnByName(s, f)()
		defer func() {
			s.ReflectValue, s.Clauses["ON CONFLICT"] = all, given
			db.RowsAffected += written
			if s.Result != nil { // of gorm.WithResult
				s.Result.RowsAffected = db.RowsAffected
			}
		}()
		delete(s.Clauses, "ON CONFLICT")
		conflicts = false
		if len(structsOf(s.ReflectValue)) == 0 {
			return
		}
	case upsert.UpdateAll:
		refuse(db, gorm.ErrNotImplemented, "an upsert of all columns does not compare "+
			"the version: name the columns by DoUpdates, or use Save")
	case !upsert.DoNothing:
		upsert.DoUpdates = append(without(upsert.DoUpdates, f), increment(f))
		s.Clauses["ON CONFLICT"] = clause.Clause{Name: given.Name, Expression: upsert}
		defer func() { s.Clauses["ON CONFLICT"] = given }()
	}
	insertVersioned(db, f, fn, conflicts, upsert.DoNothing)
}

// returnByName names a column in a RETURNING of all. Then GORM fills the models that are there, as
// it does in its own upsert. Otherwise it would put new models into the slice, which settle may
// have made. Not every field is a column, so the others stay "*". The returned function puts back
// what was there.
func returnByName(s *gorm.Statement, f *schema.Field) (restore func()) {
	given, ok := s.Clauses["RETURNING"]
	asked, _ := given.Expression.(clause.Returning)
	named := func(c clause.Column) bool { return c.Name != "*" }
	if !ok || slices.ContainsFunc(asked.Columns, named) {
		return func() {}
	}
	all := clause.Returning{Columns: []clause.Column{{Name: "*", Raw: true}, {Name: f.DBName}}}
	s.Clauses["RETURNING"] = clause.Clause{Name: given.Name, Expression: all}
	return func() { s.Clauses["RETURNING"] = given }
}

// insertVersioned writes the next version of each model, which is 1 for a new one. The models get it
// if it is known that they were inserted, which an upsert does not tell.
func insertVersioned(db *gorm.DB, f *schema.Field, fn func(*gorm.DB), upserts, nothing bool) {
	s := db.Statement
	was := make(map[any]int64) // by the pointers of the models
	models := structsOf(s.ReflectValue)
	if len(models) > 0 && !upserts {
		managed(db)
	}
	for _, m := range models {
		if !m.CanAddr() {
			refuse(db, gorm.ErrInvalidValue, "a copy of a model cannot get its version: "+
				"create the model by its pointer")
			continue
		}
		_, twice := was[m.Addr().Interface()]
		switch version := versionIn(s, f, m); {
		case twice:
		case version != 0 && upserts && !nothing:
			refuse(db, gorm.ErrInvalidData, "an upsert does not compare the version that "+
				"a model was read in: write the model by Updates or Save")
		default:
			was[m.Addr().Interface()] = version
			_ = db.AddError(f.Set(s.Context, m, version+1))
		}
	}
	inserted := false
	defer func() { // also of a panic
		for p, version := range was {
			if m := reflect.ValueOf(p).Elem(); inserted {
				setVersion(db, f, m, version, version+1)
			} else {
				_ = f.Set(s.Context, m, version)
			}
		}
	}()
	for _, row := range elements(reflect.ValueOf(s.Dest)) {
		if row.Kind() != reflect.Map {
			continue
		}
		m, _ := row.Interface().(map[string]any)
		if _, ok := m[f.DBName]; m != nil && !ok && m[f.Name] == nil {
			m[f.DBName] = 1
			defer delete(m, f.DBName)
		}
	}
	selects, omits := s.Selects, s.Omits
	defer func() { s.Selects, s.Omits = selects, omits }()
	if len(selects) > 0 {
		s.Selects = append(slices.Clone(selects), f.DBName)
	}
	isVersion := func(name string) bool { return s.Schema.LookUpField(name) == f }
	s.Omits = slices.DeleteFunc(slices.Clone(omits), isVersion)
	fn(db)
	inserted = !upserts && db.Error == nil && db.RowsAffected == int64(len(models))
}

// onPrimaryKey reports whether an upsert is of models, and asks for the rows of their primary keys.
func onPrimaryKey(s *gorm.Statement, upsert clause.OnConflict) bool {
	conditions := len(upsert.Where.Exprs) + len(upsert.TargetWhere.Exprs)
	if upsert.OnConstraint != "" || conditions > 0 || len(structsOf(s.ReflectValue)) == 0 {
		return false
	}
	for _, c := range upsert.Columns {
		if !slices.Contains(s.Schema.PrimaryFieldDBNames, c.Name) {
			return false
		}
	}
	return true
}

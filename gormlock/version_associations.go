package gormlock

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
	"gorm.io/gorm/utils"
)

// savingKey is in the settings of the statements by which GORM saves associations.
const savingKey = "gormlock:saving associations"

// savedKey is in the settings of a statement that writes associations or a slice, and of those that
// it consists of: savedRows.
const savedKey = "gormlock:saved"

type savedRow struct{ table, id string }

// savedRows are the versions that the rows had before such a statement wrote them.
type savedRows map[savedRow]int64

func savedIn(s *gorm.Statement) savedRows {
	v, _ := s.Settings.Load(savedKey)
	saved, _ := v.(savedRows)
	return saved
}

// noteSaved begins to note what a statement and those of its associations write.
func noteSaved(db *gorm.DB) {
	s := db.Statement
	if savedIn(s) == nil && reachesVersion(db) {
		s.Settings.Store(savedKey, make(savedRows))
	}
}

func endSaved(db *gorm.DB) { db.Statement.Settings.Delete(savedKey) }

// savingAssociations lets fn save a statement's associations; GORM copies the statement's settings
// to theirs.
func savingAssociations(db *gorm.DB, fn func(*gorm.DB)) {
	s := db.Statement
	if !reachesVersion(db) {
		fn(db)
		return
	}
	if _, outer := s.Settings.LoadOrStore(savingKey, true); !outer {
		defer s.Settings.Delete(savingKey)
	}
	fn(db)
}

// settle does the part of an upsert whose rows exist: it updates, under their versions, those in
// which columns must change. What is left in the statement is to be inserted. A row that was read
// and is gone is stale. settle returns the number of rows it updated.
func settle(db *gorm.DB, upsert clause.OnConflict) (updated int64) {
	s := db.Statement
	models, keys := byPrimaryKey(s, s.ReflectValue)
	if len(keys) == 0 || db.DryRun || db.Error != nil {
		return 0
	}
	f, err := versionOf(s.Schema)
	rows, find := existing(db, upsert, keys)
	if db.AddError(err) != nil || db.AddError(find) != nil {
		return 0
	}
	settled, saved := make(map[any]bool), savedIn(s)
	if saved == nil {
		saved = make(savedRows)
	}
	for _, key := range slices.Sorted(maps.Keys(models)) {
		for _, m := range models[key] {
			row, exists := rows[key]
			switch {
			case !m.CanAddr() || !exists && versionIn(s, f, m) == 0:
				continue
			case db.Error != nil: // sessions inherit it, and adding theirs would double its text
			case !exists && !upsert.UpdateAll && len(upsert.DoUpdates) == 0:
				refuse(db, ErrStale, "a row that was read is gone")
			case !exists: // or the database returns its key as another text
				updated += updateExisting(db, upsert, m, saved)
			case differs(s, upsert, m, row[0]):
				updated += updateExisting(db, upsert, m, saved)
			}
			settled[m.Addr().Interface()] = true
		}
	}
	left := reflect.MakeSlice(reflect.SliceOf(reflect.PointerTo(s.Schema.ModelType)), 0, 0)
	for _, m := range structsOf(s.ReflectValue) {
		if !m.CanAddr() || m.Type() != s.Schema.ModelType {
			return updated // refused later
		}
		if !settled[m.Addr().Interface()] {
			left = reflect.Append(left, m.Addr())
		}
	}
	if len(settled) > 0 {
		s.ReflectValue = left
	}
	return updated
}

// rowsByKey are models by the text of their primary keys.
type rowsByKey = map[string][]reflect.Value

// existing reads what an upsert compares of the rows that have one of the primary keys.
func existing(db *gorm.DB, upsert clause.OnConflict, keys [][]any) (rowsByKey, error) {
	s := db.Statement
	column, values := schema.ToQueryValues(s.Table, s.Schema.PrimaryFieldDBNames, keys)
	query := db.Session(&gorm.Session{NewDB: true, SkipHooks: true}).Unscoped().Table(s.Table).
		Select(append(assigned(upsert), s.Schema.PrimaryFieldDBNames...)).
		Where(clause.IN{Column: column, Values: values})
	query = query.Set(writeSetting, struct{}{}) // a replica may be behind
	query.Statement.TableExpr = s.TableExpr     // names the schema, too
	found := reflect.New(reflect.SliceOf(s.Schema.ModelType))
	err := query.Find(found.Interface()).Error
	rows, _ := byPrimaryKey(s, found.Elem())
	return rows, err
}

func byPrimaryKey(s *gorm.Statement, models reflect.Value) (rowsByKey, [][]any) {
	rows, seen := make(rowsByKey), make(map[any]bool)
	var keys [][]any
	for _, m := range structsOf(models) {
		id, values, keyed := primaryKey(s, m)
		if !keyed || m.CanAddr() && seen[m.Addr().Interface()] {
			continue
		}
		if m.CanAddr() {
			seen[m.Addr().Interface()] = true
		}
		if rows[id] == nil {
			keys = append(keys, values)
		}
		rows[id] = append(rows[id], m)
	}
	return rows, keys
}

// differs reports whether an upsert changes a row: that of a parent only assigns a foreign key.
func differs(s *gorm.Statement, upsert clause.OnConflict, model, row reflect.Value) bool {
	for _, a := range upsert.DoUpdates {
		f := s.Schema.LookUpField(a.Column.Name)
		if f == nil {
			return true
		}
		wanted, _ := f.ValueOf(s.Context, model)
		is, _ := f.ValueOf(s.Context, row)
		if utils.ToStringKey(wanted) != utils.ToStringKey(is) {
			return true
		}
	}
	return upsert.UpdateAll
}

// updateExisting writes what an upsert of a model would. The hooks are those of the create, which
// have run.
func updateExisting(db *gorm.DB, upsert clause.OnConflict, m reflect.Value, saved savedRows) int64 {
	s := db.Statement
	columns, omits := assigned(upsert), []string{clause.Associations}
	if upsert.UpdateAll {
		columns, omits = s.Selects, append(omits, s.Omits...)
		if len(columns) == 0 {
			columns = []string{"*"}
		}
		for _, f := range s.Schema.Fields {
			if f.AutoUpdateTime > 0 {
				_ = db.AddError(f.Set(s.Context, m, db.NowFunc()))
			}
			if writtenOnce(f) {
				omits = append(omits, f.DBName)
			}
		}
	}
	tx := db.Session(&gorm.Session{NewDB: true, SkipHooks: true}).Unscoped().Table(s.Table)
	tx.Statement.TableExpr = s.TableExpr
	tx = tx.Set(savedKey, saved).Select(columns).Omit(omits...).Updates(m.Addr().Interface())
	_ = db.AddError(tx.Error)
	return tx.RowsAffected
}

// writtenOnce reports whether an upsert of GORM does not update a column: the time of creation, or
// what the database fills in.
func writtenOnce(f *schema.Field) bool {
	filledIn := f.HasDefaultValue && f.DefaultValueInterface == nil && !strings.EqualFold(f.DefaultValue, "NULL")
	return f.AutoCreateTime > 0 || filledIn
}

func assigned(upsert clause.OnConflict) (columns []string) {
	for _, a := range upsert.DoUpdates {
		columns = append(columns, a.Column.Name)
	}
	return columns
}

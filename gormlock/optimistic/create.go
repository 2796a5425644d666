package optimistic

import (
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/internal/gormkeys"
)

func (w *write) create() {
	given, conflicts := w.s.Clauses["ON CONFLICT"]
	upsert, _ := given.Expression.(clause.OnConflict)
	_, child := w.s.Settings.Load(gormkeys.Child)
	_, save := w.s.Settings.Load(gormkeys.SaveSetting)
	all := w.s.ReflectValue
	defer func() {
		if w.s.ReflectValue = all; conflicts {
			w.s.Clauses["ON CONFLICT"] = given
		}
	}()
	insert, _ := w.s.Clauses["INSERT"].Expression.(clause.Insert)
	plain := !conflicts
	switch {
	case strings.Contains(strings.ToUpper(insert.Modifier), "REPLACE"): // of SQLite
		w.refuseUpsert()
	case !conflicts:
	case child:
		if plain = w.newChildren(upsert); w.s.ReflectValue != all && w.s.ReflectValue.Len() == 0 {
			return
		}
	case save && upsert.UpdateAll:
		if w.saveRead() {
			return
		}
		plain = true
	case !upsert.DoNothing || upsert.UpdateAll || len(upsert.DoUpdates) > 0: // MySQL updates in spite of DoNothing
		w.refuseUpsert()
	}
	if plain {
		delete(w.s.Clauses, "ON CONFLICT")
	}
	w.insert(plain)
}

func (w *write) refuseUpsert() {
	w.refuse(gorm.ErrNotImplemented, "an upsert does not compare versions: Create what is new, "+
		"and write what was read by Save or Updates, or write by conditions, db.Model(&T{}).Where(…).Updates(…)")
}

// newChildren leaves in a statement the children of a parent that were not read. The parent's write
// must not change the others. GORM only assigns their foreign keys, which are right already, or all
// columns. newChildren reports whether what is left is surely new, or an error of the database.
func (w *write) newChildren(upsert clause.OnConflict) (plain bool) {
	left := reflect.MakeSlice(reflect.SliceOf(reflect.PointerTo(w.s.Schema.ModelType)), 0, 0)
	var read []reflect.Value
	plain = true
	for _, m := range structsOf(w.s.ReflectValue) {
		if w.versionIn(m) != 0 {
			read = append(read, m)
			continue
		}
		left = reflect.Append(left, m.Addr())
		_, _, keyed := w.primaryKey(m)
		plain = plain && !(keyed && upsert.DoNothing)
	}
	if upsert.UpdateAll && len(read) > 0 || !w.unchanged(read, upsert.DoUpdates) {
		w.refuse(gorm.ErrNotImplemented, "a child that was read is not changed through its parent: "+
			"write it itself, with its foreign key, and omit it in the write of the parent")
	}
	if len(read) > 0 {
		w.s.ReflectValue = left
	}
	return plain
}

// unchanged reports whether the rows of models have the values already that an upsert assigns.
func (w *write) unchanged(models []reflect.Value, set clause.Set) bool {
	if len(set) == 0 || w.db.DryRun || w.db.Error != nil {
		return true
	}
	for part := range slices.Chunk(models, 100) { // SQLite refuses a thousand ORs in a row
		var rows []clause.Expression
		for _, m := range part {
			_, row, _ := w.primaryKey(m)
			for _, a := range set {
				value, _ := w.s.Schema.LookUpField(a.Column.Name).ValueOf(w.s.Context, m)
				row = append(row, clause.Eq{Column: column(a.Column.Name), Value: value})
			}
			rows = append(rows, clause.And(row...))
		}
		query := w.db.Session(&gorm.Session{NewDB: true}).Unscoped().Table(w.s.Table)
		query.Statement.TableExpr = w.s.TableExpr            // names the schema, too
		query = query.Set(gormkeys.WriteSetting, struct{}{}) // a replica may be behind
		var found int64
		err := query.Where(clause.Or(rows...)).Count(&found).Error
		if w.db.AddError(err) != nil || found != int64(len(part)) {
			return false
		}
	}
	return true
}

// saveRead does Save of a slice that was read, by an update of each model, and reports whether it
// was one. The hooks are those of Save, which have run.
func (w *write) saveRead() bool {
	models := structsOf(w.s.ReflectValue)
	read := func(m reflect.Value) bool { return w.versionIn(m) != 0 }
	if !slices.ContainsFunc(models, read) {
		return false
	}
	unread := func(m reflect.Value) bool { return !read(m) || !m.CanAddr() }
	if slices.ContainsFunc(models, unread) {
		w.refuse(gorm.ErrNotImplemented, "Save of a slice writes rows that were read, or new ones, not both: "+
			"Create the new ones")
		return true
	}
	columns := w.s.Selects
	if len(columns) == 0 {
		columns = []string{"*"}
	}
	w.allOrNothing(len(models), func() {
		for _, m := range models {
			for _, f := range w.s.Schema.Fields {
				if f.AutoUpdateTime > 0 {
					_ = w.db.AddError(f.Set(w.s.Context, m, w.db.NowFunc()))
				}
			}
			if w.db.Error != nil {
				return
			}
			tx := w.db.Session(&gorm.Session{NewDB: true, SkipHooks: true}).Unscoped().Table(w.s.Table)
			tx.Statement.TableExpr = w.s.TableExpr
			if where, ok := w.s.Clauses["WHERE"]; ok { // an INSERT has none
				tx.Statement.Clauses["WHERE"] = where
			}
			omits := append([]string{clause.Associations}, w.s.Omits...)
			tx = tx.Select(columns).Omit(omits...).Updates(m.Addr().Interface())
			_ = w.db.AddError(tx.Error)
			w.affected(w.db.RowsAffected + tx.RowsAffected)
		}
	})
	if w.db.Error != nil {
		w.affected(0) // what was written is undone
	}
	return true
}

// insert writes the next version of each model, which is 1 for a new one. The models get it if it is
// known that they were inserted, which only a plain INSERT tells.
func (w *write) insert(plain bool) {
	was := make(map[any]int64) // by the pointers of the models
	models := structsOf(w.s.ReflectValue)
	if len(models) > 0 && plain {
		w.requireManaged()
	}
	for _, m := range models {
		if !m.CanAddr() {
			w.refuse(gorm.ErrInvalidValue, "a copy of a model cannot get its version: "+
				"create the model by its pointer")
			continue
		}
		if _, twice := was[m.Addr().Interface()]; !twice {
			version := w.versionIn(m)
			was[m.Addr().Interface()] = version
			_ = w.db.AddError(set(w.s.Context, w.field, m, version+1))
		}
	}
	inserted := false
	defer func() { // also of a panic
		for p, version := range was {
			if m := reflect.ValueOf(p).Elem(); inserted {
				w.setVersion(m, version, version+1)
			} else {
				_ = set(w.s.Context, w.field, m, version)
			}
		}
	}()
	for _, row := range elements(reflect.ValueOf(w.s.Dest)) {
		if row.Kind() != reflect.Map {
			continue
		}
		m, _ := row.Interface().(map[string]any)
		if _, ok := m[w.field.DBName]; m != nil && !ok && m[w.field.Name] == nil {
			m[w.field.DBName] = 1
			defer delete(m, w.field.DBName)
		}
	}
	selects, omits := w.s.Selects, w.s.Omits
	defer func() { w.s.Selects, w.s.Omits = selects, omits }()
	if len(selects) > 0 {
		w.s.Selects = append(slices.Clone(selects), w.field.DBName)
	}
	isVersion := func(name string) bool { return w.s.Schema.LookUpField(name) == w.field }
	w.s.Omits = slices.DeleteFunc(slices.Clone(omits), isVersion)
	w.next()
	inserted = plain && w.sent() && w.db.RowsAffected == int64(len(models))
}

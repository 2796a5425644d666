package gormlock

import (
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"
)

// setVersion gives a model its version. What is rolled back is taken out of the model, as others
// may raise the row to the same number.
func setVersion(db *gorm.DB, f *schema.Field, model reflect.Value, was, now int64) {
	s := db.Statement
	ctx := s.Context
	_ = db.AddError(f.Set(ctx, model, now))
	t, _ := transactionOf(s.ConnPool)
	if t == nil || was == now {
		return
	}
	t.undone.add(undoEntry{takeBack: func() {
		value, _ := f.ValueOf(ctx, model)
		if version, _ := integer(value); version == now {
			_ = f.Set(ctx, model, was)
		}
	}})
}

// managed refuses to give models their versions in a transaction that is not ours, as nothing would
// take them back if it is rolled back.
func managed(db *gorm.DB) {
	if t, open := transactionOf(db.Statement.ConnPool); open && t == nil && !db.DryRun {
		refuse(db, ErrUnmanagedTransaction, "its rollback would leave new versions in the models")
	}
}

// savepointKey is in the settings of a statement that began a savepoint.
type savepointKey struct{ *gorm.Statement }

// allOrNothing begins a savepoint for a statement that may write several rows, one of which may be
// stale, in a transaction that goes on.
func allOrNothing(db *gorm.DB) {
	s := db.Statement
	_, open := transactionOf(s.ConnPool)
	if !open || db.Error != nil || db.DryRun || !reachesVersion(db) || !writesSeveral(s) {
		return
	}
	_, saving := s.Settings.Load(savingKey) // in the savepoint of the parent
	_, started := db.InstanceGet("gorm:started_transaction")
	_, guarded := s.Settings.Load(singleKey{s})
	if saving || started || guarded {
		return
	}
	name := fmt.Sprintf("gormlock_%p", s)
	if db.AddError(execUnprepared(db, "SAVEPOINT "+name)) == nil {
		s.Settings.Store(savepointKey{s}, name)
	}
}

// endAllOrNothing ends the savepoint, after an error without what the statement wrote. There is none
// if the database has rolled everything back.
func endAllOrNothing(db *gorm.DB) {
	name, ok := db.Statement.Settings.LoadAndDelete(savepointKey{db.Statement})
	if !ok {
		return
	}
	if gone(db.Error) {
		return
	}
	if db.Error != nil {
		if err := execUnprepared(db, fmt.Sprintf("ROLLBACK TO SAVEPOINT %s", name)); err != nil {
			return // and the transaction is given up
		}
	}
	if err := execUnprepared(db, fmt.Sprintf("RELEASE SAVEPOINT %s", name)); db.Error == nil {
		_ = db.AddError(err)
	}
}

// execUnprepared runs a statement of savepoints, which not every database can prepare.
func execUnprepared(db *gorm.DB, sql string) error {
	s := db.Statement
	if prepared, ok := s.ConnPool.(*gorm.PreparedStmtTX); ok {
		s.ConnPool = prepared.Tx
		defer func() { s.ConnPool = prepared }()
	}
	tx := db.Session(&gorm.Session{NewDB: true})
	tx.Error = nil
	return tx.Exec(sql).Error
}

// writesSeveral reports whether a statement has several models, or associations.
func writesSeveral(s *gorm.Statement) bool {
	models := structsOf(s.ReflectValue)
	if len(models) == 0 && s.Model != nil {
		models = structsOf(reflect.ValueOf(s.Model))
	}
	if len(models) > 1 || len(s.Selects) > 0 {
		return true
	}
	for _, rel := range relations(s.Schema) {
		for _, m := range models {
			if m.Type() != s.Schema.ModelType {
				continue
			}
			if _, zero := rel.Field.ValueOf(s.Context, m); !zero {
				return true
			}
		}
	}
	return false
}

// reachesVersion reports whether a model, or one that its associations lead to, has a version.
func reachesVersion(db *gorm.DB) bool {
	s := db.Statement.Schema
	p, err := registered(db)
	if s == nil || err != nil {
		return false
	}
	if known, ok := p.versioned.Load(s); ok {
		return known.(bool)
	}
	seen := map[*schema.Schema]bool{s: true}
	found := false
	for next := []*schema.Schema{s}; len(next) > 0 && !found; next = next[1:] {
		f, err := versionOf(next[0])
		found = f != nil || err != nil
		for _, rel := range relations(next[0]) {
			if !seen[rel.FieldSchema] {
				seen[rel.FieldSchema] = true
				// Another goroutine may still parse it, for which Parse waits.
				_ = (&gorm.Statement{DB: db}).Parse(reflect.New(rel.FieldSchema.ModelType).Interface())
				next = append(next, rel.FieldSchema)
			}
		}
	}
	p.versioned.Store(s, found)
	return found
}

func relations(s *schema.Schema) []*schema.Relationship {
	r := &s.Relationships
	return slices.Concat(r.BelongsTo, r.HasOne, r.HasMany, r.Many2Many)
}

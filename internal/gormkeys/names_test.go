package gormkeys_test

import (
	"path/filepath"
	"testing"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/plugin/dbresolver"

	"github.com/onelane/onelane/internal/gormkeys"
)

type row struct {
	ID   int
	Name string
}

func open(t *testing.T) *gorm.DB {
	t.Helper()
	dsn := "file:" + filepath.Join(t.TempDir(), "names.db")
	db, err := gorm.Open(sqlite.Open(dsn), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if inner, err := db.DB(); err == nil {
			_ = inner.Close()
		}
	})
	if err := db.AutoMigrate(&row{}); err != nil {
		t.Fatal(err)
	}
	return db
}

// atInsert calls fn when GORM inserts.
func atInsert(t *testing.T, db *gorm.DB, fn func(db *gorm.DB)) {
	t.Helper()
	if err := db.Callback().Create().Before("gorm:create").Register("names", fn); err != nil {
		t.Fatal(err)
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// If it breaks, guarded writes find no place to end their transaction.
func TestNames_Steps(t *testing.T) {
	db := open(t)
	all := db.Callback()
	for _, name := range []string{gormkeys.BeginStep, gormkeys.CommitStep} {
		if all.Create().Get(name) == nil || all.Update().Get(name) == nil || all.Delete().Get(name) == nil {
			t.Errorf("GORM has no callback %q", name)
		}
	}
}

// If it breaks, the plugin no longer saves GORM's copy of each statement that is written.
func TestNames_Begin(t *testing.T) {
	db := open(t)
	for _, p := range []interface{ Get(string) func(*gorm.DB) }{db.Callback().Create(), db.Callback().Update(), db.Callback().Delete()} {
		if !gormkeys.IsBegin(p.Get(gormkeys.BeginStep)) || gormkeys.IsBegin(p.Get(gormkeys.CommitStep)) {
			t.Error("GORM begins by another function")
		}
	}
}

// If it breaks, GORM does not commit single writes.
func TestNames_MarkStarted(t *testing.T) {
	db := open(t)
	atInsert(t, db, func(db *gorm.DB) {
		tx := db.Session(&gorm.Session{SkipDefaultTransaction: true}).Begin()
		db.Statement.ConnPool = tx.Statement.ConnPool
		gormkeys.MarkStarted(db)
	})
	do(t, db.Session(&gorm.Session{NewDB: true}).Callback().Create().Remove(gormkeys.BeginStep))
	do(t, db.Create(&row{Name: "marked"}).Error)
	if inner, err := db.DB(); err != nil || inner.Stats().InUse != 0 {
		t.Errorf("%v, or the transaction is still open", err)
	}
	var n int64
	if do(t, db.Model(&row{}).Where("name = ?", "marked").Count(&n).Error); n != 1 {
		t.Error("the row is not stored")
	}
}

// If it breaks, a hook that panics leaves GORM's transaction open, and a statement that is used again
// commits twice.
func TestNames_Started(t *testing.T) {
	db := open(t)
	var started, forgotten bool
	atInsert(t, db, func(db *gorm.DB) {
		started = gormkeys.StartedByGORM(db)
		gormkeys.ForgetStarted(db.Statement)
		forgotten = !gormkeys.StartedByGORM(db)
		db.InstanceSet("gorm:started_transaction", true) // GORM commits
	})
	do(t, db.Create(&row{}).Error)
	if !started || !forgotten {
		t.Errorf("GORM's own transaction: started %v, forgotten %v", started, forgotten)
	}
	tx := db.Begin()
	defer tx.Rollback()
	before := tx.Callback().Create()
	do(t, before.Replace("names", func(db *gorm.DB) { started = gormkeys.StartedByGORM(db) }))
	if do(t, tx.Create(&row{}).Error); started {
		t.Error("a transaction of the caller counts as GORM's")
	}
}

// If it breaks, Save of a slice with a Version is refused as an upsert.
func TestNames_Save(t *testing.T) {
	db := open(t)
	var save bool
	atInsert(t, db, func(db *gorm.DB) { _, save = db.Statement.Settings.Load(gormkeys.SaveSetting) })
	if do(t, db.Create(&[]row{{Name: "a"}}).Error); save {
		t.Error("Create looks like Save")
	}
	if do(t, db.Save(&[]row{{Name: "a"}}).Error); !save {
		t.Error("Save of a slice does not tell")
	}
}

// If it breaks, dbresolver goes around the guards, and reads of versions go to a replica.
func TestNames_Resolver(t *testing.T) {
	db := open(t)
	do(t, db.Use(dbresolver.Register(dbresolver.Config{})))
	if _, ok := db.Plugins[gormkeys.Resolver]; !ok || db.Callback().Query().Get(gormkeys.Resolver) == nil {
		t.Errorf("dbresolver is not %q", gormkeys.Resolver)
	}
	tx := db.Clauses(dbresolver.Write)
	if _, ok := tx.Statement.Settings.Load(gormkeys.WriteSetting); !ok {
		t.Errorf("dbresolver's Write does not set %q", gormkeys.WriteSetting)
	}
}

// If it breaks, savepoints are prepared, which MySQL refuses.
func TestUnprepared(t *testing.T) {
	db := open(t)
	tx := db.Session(&gorm.Session{PrepareStmt: true}).Begin()
	defer tx.Rollback()
	if _, ok := tx.Statement.ConnPool.(*gorm.PreparedStmtTX); !ok {
		t.Fatalf("a session that prepares has a %T", tx.Statement.ConnPool)
	}
	if _, ok := gormkeys.Unprepared(tx).Statement.ConnPool.(*gorm.PreparedStmtTX); ok {
		t.Error("it still prepares")
	}
}

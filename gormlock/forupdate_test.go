package gormlock_test

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestForUpdate_LocksTheRow: read, decide, write, without a guard: nothing is lost on any database.
func TestForUpdate_LocksTheRow(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 0)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 5 {
					err := db.Transaction(func(tx *gorm.DB) error {
						var s Stock
						if err := tx.Scopes(gormlock.ForUpdate()).Preload("Items").Take(&s, "sku = 42").Error; err != nil {
							return err
						}
						return tx.Model(&s).Update("left", s.Left+1).Error
					})
					if err != nil {
						t.Errorf("Transaction: %v", err)
					}
				}
			})
		}
		all.Wait()
		wantLeft(t, db, 42, 40)
	})
}

// TestForUpdate_SQLite: a transaction that begins as a reader becomes the only writer before it reads, whatever it reads.
func TestForUpdate_SQLite(t *testing.T) {
	t.Parallel()
	dsn := "file:" + filepath.Join(t.TempDir(), "deferred") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(" // BEGIN DEFERRED, as is the default
	db, err := gorm.Open(sqlite.Open(dsn+"5000)"), &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	defer pool(t, db).Close()
	other, err := gorm.Open(sqlite.Open(dsn+"1)"), &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	defer pool(t, other).Close()
	ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
	ok(t, "Exec", db.Exec("CREATE VIEW shelf AS SELECT * FROM stocks").Error)
	ok(t, "Use", db.Use(gormlock.New(nil)))
	put(t, db, 42, 10)
	reads := map[string]func(tx *gorm.DB) error{
		"model":          func(tx *gorm.DB) error { return tx.Take(&Stock{}, "sku = 42").Error },
		"another struct": func(tx *gorm.DB) error { return tx.Table("stocks").Take(&struct{ Left int64 }{}, "sku = 42").Error },
		"alias": func(tx *gorm.DB) error {
			return tx.Table("stocks AS s").Joins("JOIN stocks AS o ON o.sku = s.sku").Select("s.sku").Find(&[]map[string]any{}).Error
		},
		"subquery": func(tx *gorm.DB) error {
			return tx.Table("(?) AS s", db.Model(&Stock{})).Find(&[]map[string]any{}).Error
		},
		"view": func(tx *gorm.DB) error { return tx.Table("shelf").Find(&[]Stock{}).Error },
		"Row":  func(tx *gorm.DB) error { return tx.Model(&Stock{}).Select("sku").Row().Scan(new(int)) },
	}
	for name, read := range reads {
		tx := db.Begin()
		ok(t, name+", without ForUpdate", read(tx))
		ok(t, name+", without ForUpdate: others write", take(other, 42))
		ok(t, "Rollback", tx.Rollback().Error)

		tx = db.Begin()
		ok(t, name, read(tx.Scopes(gormlock.ForUpdate())))
		if err := take(other, 42); err == nil {
			t.Errorf("%s: another transaction wrote", name)
		}
		ok(t, name+", then a write", take(tx, 42))
		ok(t, "Commit", tx.Commit().Error)
	}
	wantLeft(t, db, 42, int64(10-2*len(reads)))

	late := db.Begin()
	ok(t, "a first read", late.Take(&Stock{}).Error)
	ok(t, "others write", take(other, 42))
	if late.Scopes(gormlock.ForUpdate()).Take(&Stock{}).Error == nil {
		t.Error("a read of what is not the newest any more was locked")
	}
	ok(t, "Rollback", late.Rollback().Error)
}

func TestForUpdate_Options(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 10)
		put(t, db, 43, 10)
		if db.Name() == "sqlite" {
			return
		}
		tx := db.Begin()
		ok(t, "Take", tx.Scopes(gormlock.ForUpdate()).Take(&Stock{}, "sku = 42").Error)
		start := time.Now()
		err := db.Transaction(func(tx *gorm.DB) error {
			var one Stock
			if err := tx.Scopes(gormlock.ForUpdate(clause.LockingOptionsSkipLocked)).Order("sku").Take(&one).Error; err != nil {
				return err
			}
			if one.SKU != 43 {
				t.Errorf("SkipLocked read %d", one.SKU)
			}
			return tx.Scopes(gormlock.ForUpdate(clause.LockingOptionsNoWait)).Take(&Stock{}, "sku = 42").Error
		})
		if err == nil || errors.Is(err, gorm.ErrRecordNotFound) || time.Since(start) > 20*time.Second {
			t.Errorf("NoWait: %v after %v", err, time.Since(start))
		}
		ok(t, "Rollback", tx.Rollback().Error)
	})
}

func TestForUpdate_Refusals(t *testing.T) {
	t.Parallel()
	scope := gormlock.ForUpdate()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		want(t, "no plugin", db.Scopes(scope).Take(&Stock{}).Error, gormlock.ErrNotRegistered)
		ok(t, "Use", db.Use(gormlock.New(nil)))
		if err := db.Scopes(gormlock.ForUpdate("; DROP TABLE stocks")).Take(&Stock{}).Error; err == nil {
			t.Error("ForUpdate took an unknown option")
		}
		want(t, "outside a transaction", db.Scopes(scope).Take(&Stock{}).Error, gormlock.ErrNoTransaction)
		want(t, "a Row outside", db.Model(&Stock{}).Scopes(scope).Select("left").Row().Scan(new(int)), gormlock.ErrNoTransaction)
		raw := func(tx *gorm.DB) error { return tx.Raw("SELECT * FROM stocks").Scopes(scope).Scan(&[]Stock{}).Error }
		want(t, "raw SQL", db.Transaction(raw), gorm.ErrNotImplemented)
		dry := db.Session(&gorm.Session{DryRun: true}).Scopes(scope).Take(&Stock{})
		ok(t, "DryRun", dry.Error)
		ok(t, "in a transaction", db.Transaction(func(tx *gorm.DB) error {
			rows, err := tx.Model(&Stock{}).Scopes(scope).Rows()
			if err != nil {
				return err
			}
			return rows.Close()
		}))
		ok(t, "in a guarded one", gormlock.Transaction(reregister(t, db), "k", func(tx *gorm.DB) error { return tx.Scopes(scope).Take(&Stock{}).Error }))
	})
}

// reregister is another gorm.DB on the same connections, with the plugin and a Locker.
func reregister(t testing.TB, db *gorm.DB) *gorm.DB { return holder(t, db, 1) }

// TestForUpdate_Generics: the form in the docs locks rows, and is refused where it cannot.
func TestForUpdate_Generics(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 0)
		lock := func(s *gorm.Statement) { gormlock.ForUpdate()(s.DB) }
		read := func(db *gorm.DB) (Stock, error) {
			return gorm.G[Stock](db).Scopes(lock).Where("sku = ?", 42).Take(t.Context())
		}
		_, err := read(db)
		want(t, "outside a transaction", err, gormlock.ErrNoTransaction)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 5 {
					err := db.Transaction(func(tx *gorm.DB) error {
						s, err := read(tx)
						if err != nil {
							return err
						}
						_, err = gorm.G[Stock](tx).Where("id = ?", s.ID).Update(t.Context(), "left", s.Left+1)
						return err
					})
					if err != nil {
						t.Errorf("Transaction: %v", err)
					}
				}
			})
		}
		all.Wait()
		wantLeft(t, db, 42, 40)
	})
}

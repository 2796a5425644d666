package optimistic_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// bookkeeper has no version. Its hooks create models that have one.
type bookkeeper struct {
	ID            uint
	Fail          bool `gorm:"-"`
	before, after Account
}

func (b *bookkeeper) BeforeCreate(tx *gorm.DB) error {
	b.before = Account{Balance: 1}
	return tx.Create(&b.before).Error
}

func (b *bookkeeper) AfterCreate(tx *gorm.DB) error {
	b.after = Account{Balance: 2}
	err := tx.Transaction(func(tx *gorm.DB) error { return tx.Create(&b.after).Error })
	if b.Fail {
		b.ID = 0
		return errNo
	}
	return err
}

// TestVersion_UnmanagedTransaction: the rollback of a transaction that is not ours would leave new
// versions in the models. So a write of models in it is refused, and a single statement's is not.
func TestVersion_UnmanagedTransaction(t *testing.T) {
	t.Parallel()
	ways := map[string]func(t *testing.T, db, _ *gorm.DB, fn func(tx *gorm.DB) error) error{
		"Connection": func(_ *testing.T, db, _ *gorm.DB, fn func(tx *gorm.DB) error) error {
			return db.Connection(func(c *gorm.DB) error {
				return c.Session(&gorm.Session{}).Transaction(fn)
			})
		},
		"a *sql.Tx": func(t *testing.T, db, _ *gorm.DB, fn func(tx *gorm.DB) error) error {
			own, err := pool(t, db).BeginTx(t.Context(), nil)
			ok(t, "BeginTx", err)
			tx := db.Session(&gorm.Session{NewDB: true, Context: t.Context()})
			tx.Statement.ConnPool = own
			err = fn(tx)
			ok(t, "Rollback", own.Rollback())
			return err
		},
		"a session of before Use": func(_ *testing.T, _, early *gorm.DB, fn func(tx *gorm.DB) error) error {
			return early.Transaction(fn)
		},
	}
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&bookkeeper{}))
		early := db.WithContext(t.Context())
		ok(t, "Use", db.Use(gormlock.New(check.Locker(t, backendtest.Memory()))))
		for name, way := range ways {
			_, shared := early.Statement.ConnPool.(*gorm.PreparedStmtDB)
			if name == "a session of before Use" && shared {
				continue // its statements are prepared in a pool that the sessions share
			}
			mine, _ := twice(t, db)
			want(t, name, way(t, db, early, func(tx *gorm.DB) error {
				want(t, name+", Create", tx.Create(&Account{}).Error, gormlock.ErrUnmanagedTransaction)
				want(t, name+", Delete", tx.Delete(&mine).Error, gormlock.ErrUnmanagedTransaction)
				want(t, name+", Save", tx.Save([]*Account{&mine}).Error, gormlock.ErrUnmanagedTransaction)
				ok(t, name+", by conditions", tx.Model(&Account{}).Where("id = ?", mine.ID).Update("balance", 6).Error)
				ok(t, name+", Decrement", decrement(tx.Model(&mine), "balance", 1))
				err := tx.Model(&mine).Update("name", "b").Error
				wantVersion(t, name, mine.Version, 1)
				return err
			}), gormlock.ErrUnmanagedTransaction)
			wantRow(t, name, db, mine.ID, 10, 1)
		}
		single := func(name string, db *gorm.DB) {
			b := bookkeeper{Fail: true}
			want(t, name+", hooks", db.Create(&b).Error, errNo)
			for _, a := range []Account{b.before, b.after} {
				wantVersion(t, name+", what a failed hook created", a.Version, 0)
			}
			b.Fail = false
			ok(t, name+", hooks", db.Create(&b).Error)
			wantRow(t, name+", hooks", db, b.before.ID, 1, 1)
			wantRow(t, name+", hooks", db, b.after.ID, 2, 1)
			h := Hooked{Name: name}
			ok(t, name+", Create", db.Create(&h).Error)
			h.Fail = true
			want(t, name+", a hook", db.Model(&h).Update("name", "i").Error, errNo)
			wantVersion(t, name+", a hook", h.Version, 1)
			h.Fail = false
			ok(t, name+", Update", db.Model(&h).Update("name", name+" again").Error)
			wantVersion(t, name+", Update", h.Version, 2)
		}
		single("early", early)
		single("early, prepared", early.Session(&gorm.Session{PrepareStmt: true}))
		ok(t, "Connection", db.Connection(func(c *gorm.DB) error {
			single("Connection", c.Session(&gorm.Session{}))
			return nil
		}))
	})
}

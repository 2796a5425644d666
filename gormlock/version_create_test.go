package gormlock_test

import (
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

var errNo = errors.New("no")

// Hooked fails after it was created or updated, if told to.
type Hooked struct {
	ID      uint
	Name    string `gorm:"size:64;uniqueIndex"`
	Fail    bool   `gorm:"-"`
	Version gormlock.Version
}

func (h *Hooked) AfterSave(*gorm.DB) error {
	if h.Fail {
		return errNo
	}
	return nil
}

func hookedDB(t *testing.T, fn func(t *testing.T, db *gorm.DB)) {
	t.Helper()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Hooked{}))
		fn(t, db)
	})
}

// wantRow fails unless the row of an account has this balance and version.
func wantRow(t *testing.T, what string, db *gorm.DB, id uint, balance int64, version gormlock.Version) {
	t.Helper()
	var now Account
	ok(t, "Take", db.Unscoped().Take(&now, id).Error)
	if now.Balance != balance || now.Version != version {
		t.Fatalf("%s: balance %d in version %d, want %d in %d", what, now.Balance, now.Version, balance, version)
	}
}

func wantVersion(t *testing.T, what string, got, version gormlock.Version) {
	t.Helper()
	if got != version {
		t.Fatalf("%s: the model has version %d, want %d", what, got, version)
	}
}

func TestVersion_CreateFailed(t *testing.T) {
	t.Parallel()
	hookedDB(t, func(t *testing.T, db *gorm.DB) {
		theirs, _ := twice(t, db)
		mine := Account{Model: gorm.Model{ID: theirs.ID}, Balance: 100}
		if db.Create(&mine).Error == nil {
			t.Fatal("a second row was created")
		}
		wantVersion(t, "a duplicate", mine.Version, 0)
		want(t, "Save", db.Save(&mine).Error, gormlock.ErrStale)
		batch := []Account{{Balance: 1}, {Model: gorm.Model{ID: theirs.ID}}}
		if db.Create(&batch).Error == nil {
			t.Fatal("a second row was created")
		}
		wantVersion(t, "of a batch", batch[0].Version+batch[1].Version, 0)
		wantRow(t, "after all", db, theirs.ID, 10, 1)

		h := Hooked{Name: "h", Fail: true}
		want(t, "a hook", db.Create(&h).Error, errNo)
		wantVersion(t, "a hook", h.Version, 0)
		many := []Hooked{{Name: "a"}, {Name: "b"}, {Name: "c", Fail: true}}
		err := db.Transaction(func(tx *gorm.DB) error {
			want(t, "CreateInBatches", tx.CreateInBatches(&many, 2).Error, errNo)
			return nil
		})
		ok(t, "Transaction", err)
		for _, h := range many {
			wantVersion(t, "CreateInBatches", h.Version, 0)
		}
		var n int64
		if ok(t, "Count", db.Model(&Hooked{}).Count(&n).Error); n != 0 {
			t.Fatalf("%d rows were written", n)
		}
		dry := db.Session(&gorm.Session{DryRun: true})
		h = Hooked{Name: "dry"}
		ok(t, "DryRun", dry.Create(&h).Error)
		wantVersion(t, "DryRun", h.Version, 0)
	})
}

func TestVersion_RolledBack(t *testing.T) {
	t.Parallel()
	hookedDB(t, func(t *testing.T, db *gorm.DB) {
		h := Hooked{Name: "h"}
		ok(t, "Create", db.Create(&h).Error)
		rename := func(db *gorm.DB) error { return db.Model(&h).Update("name", "i").Error }
		h.Fail = true
		want(t, "a hook", rename(db), errNo)
		wantVersion(t, "a hook", h.Version, 1)
		h.Fail = false
		err := db.Transaction(func(tx *gorm.DB) error {
			ok(t, "Update", rename(tx))
			inner := tx.Transaction(func(tx *gorm.DB) error {
				ok(t, "Update", errors.Join(rename(tx), rename(tx)))
				wantVersion(t, "inside", h.Version, 4)
				return errNo
			})
			want(t, "the inner block", inner, errNo)
			wantVersion(t, "the inner block", h.Version, 2)
			ok(t, "Update", tx.SavePoint("s").Error)
			ok(t, "Update", rename(tx))
			ok(t, "Update", tx.RollbackTo("s").Error)
			wantVersion(t, "a savepoint", h.Version, 2)
			ok(t, "Update", rename(tx))
			wantVersion(t, "after the savepoint", h.Version, 3)
			return errNo
		})
		want(t, "the block", err, errNo)
		wantVersion(t, "the block", h.Version, 1)
		ok(t, "others", db.Model(&Hooked{}).Where("id = ?", h.ID).Update("name", "theirs").Error)
		want(t, "after the rollback", rename(db), gormlock.ErrStale)
		ok(t, "Take", db.Take(&h).Error)
		ok(t, "committed", db.Transaction(rename))
		ok(t, "after the commit", rename(db))
		wantVersion(t, "after the commit", h.Version, 4)
	})
}

func TestVersion_CreateForms(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		for name, create := range map[string]func(a *Account) error{
			"Select":       func(a *Account) error { return db.Select("Name", "Balance").Create(a).Error },
			"Select, Omit": func(a *Account) error { return db.Select("*").Omit("version").Create(a).Error },
			"Omit":         func(a *Account) error { return db.Omit("Version").Create(a).Error },
			"generics":     func(a *Account) error { return gorm.G[Account](db).Create(db.Statement.Context, a) },
			"Save":         func(a *Account) error { return db.Save(a).Error },
			"Save, slice":  func(a *Account) error { return db.Save([]*Account{a}).Error },
			"batches":      func(a *Account) error { return db.CreateInBatches([]*Account{a, {}, {}}, 2).Error },
			"FirstOrCreate": func(a *Account) error {
				return db.Where("name = ?", "nobody").FirstOrCreate(a).Error
			},
		} {
			a := Account{Name: name, Balance: 10}
			ok(t, name, create(&a))
			wantVersion(t, name, a.Version, 1)
			wantRow(t, name, db, a.ID, 10, 1)
			ok(t, name+", Update", db.Model(&a).Update("balance", 9).Error)
		}
		one := map[string]any{"balance": 1}
		two := []map[string]any{{"balance": 2}, {"balance": 3, "version": 5}}
		set := clause.Assignment{Column: clause.Column{Name: "balance"}, Value: 4}
		ok(t, "a map", db.Model(&Account{}).Create(one).Error)
		ok(t, "maps", db.Model(&Account{}).Create(&two).Error)
		ok(t, "Set", gorm.G[Account](db).Set(set).Create(db.Statement.Context))
		if _, has := one["version"]; has || two[1]["version"] != 5 {
			t.Errorf("the maps are %v and %v", one, two)
		}
		for balance, version := range map[int]gormlock.Version{1: 1, 2: 1, 3: 5, 4: 1} {
			var a Account
			ok(t, "Take", db.Take(&a, "balance = ?", balance).Error)
			wantVersion(t, "a map", a.Version, version)
		}
	})
}

func TestVersion_Upserts(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		nothing := clause.OnConflict{DoNothing: true}
		balance := clause.OnConflict{Columns: []clause.Column{{Name: "id"}}, DoUpdates: clause.AssignmentColumns([]string{"balance"})}
		for name, c := range map[string]struct {
			upsert  clause.OnConflict
			balance int64
			version gormlock.Version
		}{"DoNothing": {nothing, 10, 1}, "DoUpdates": {balance, 100, 2}} {
			theirs, stale := twice(t, db)
			mine := []Account{{Model: gorm.Model{ID: theirs.ID}, Balance: 100}, {Model: gorm.Model{ID: theirs.ID + 1000}, Balance: 5}}
			ok(t, name, db.Clauses(c.upsert).Omit("Version").Create(&mine).Error)
			wantRow(t, name+", there", db, mine[0].ID, c.balance, c.version)
			wantRow(t, name+", new", db, mine[1].ID, 5, 1)
			for i := range mine {
				wantVersion(t, name, mine[i].Version, 0)
				want(t, name+", not read", db.Model(&mine[i]).Update("balance", 1).Error, gormlock.ErrStale)
				ok(t, name+", read", db.Take(&mine[i]).Error)
				ok(t, name+", read", db.Model(&mine[i]).Update("balance", 1).Error)
			}
			want(t, name+" and others", db.Model(&stale).Update("balance", 2).Error, gormlock.ErrStale)
		}
		all := Account{Balance: 7}
		ok(t, "UpdateAll, new", db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&all).Error)
		all.Balance = 8
		ok(t, "UpdateAll, read", db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&all).Error)
		wantVersion(t, "UpdateAll", all.Version, 2)
		wantRow(t, "UpdateAll", db, all.ID, 8, 2)
		unread := Account{Model: gorm.Model{ID: all.ID}}
		want(t, "UpdateAll, not read", db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&unread).Error, gormlock.ErrStale)
		wantRow(t, "UpdateAll, not read", db, all.ID, 8, 2)
	})
}

// TestVersion_SaveSlice inserts what is new, updates what was read, and writes nothing if a row is
// stale.
func TestVersion_SaveSlice(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Create", db.Create(&[]Account{{Name: "a"}, {Name: "b"}}).Error)
		var mine, theirs []Account
		ok(t, "Find", errors.Join(db.Order("id").Find(&mine).Error, db.Order("id").Find(&theirs).Error))
		change := func(all []Account) []Account {
			all = append([]Account{{Name: "new"}}, all...)
			for i := range all {
				all[i].Balance = 5
			}
			return all
		}
		mine, theirs = change(mine), change(theirs)
		res := db.Save(&mine)
		ok(t, "Save", res.Error)
		if res.RowsAffected != 3 || mine[0].ID == 0 || mine[0].Version != 1 || mine[1].Version != 2 || mine[2].Version != 2 {
			t.Fatalf("%d rows were saved: %+v", res.RowsAffected, mine)
		}
		if !mine[2].UpdatedAt.After(theirs[2].UpdatedAt) {
			t.Errorf("updated_at is %v", mine[2].UpdatedAt)
		}
		ok(t, "others", db.Model(&Account{}).Where("id = ?", mine[2].ID).Update("balance", 6).Error)
		stale := func(tx *gorm.DB) error {
			want(t, "Save, stale", tx.Save(&mine).Error, gormlock.ErrStale)
			return nil
		}
		mine = append(mine, Account{Name: "newer"})
		for _, err := range []error{stale(db), db.Transaction(stale)} {
			ok(t, "Transaction", err)
			var n int64
			ok(t, "Count", db.Model(&Account{}).Count(&n).Error)
			if n != 3 || mine[0].Version != 1 || mine[1].Version != 2 || mine[2].Version != 2 || mine[3].Version != 0 {
				t.Fatalf("%d rows, the models are %+v", n, mine)
			}
			wantRow(t, "stale", db, mine[1].ID, 5, 2)
		}
		ok(t, "Take", db.Take(&mine[2]).Error)
		ok(t, "Save", db.Save(&mine).Error)
		ok(t, "Delete", db.Unscoped().Delete(&Account{}, mine[0].ID).Error)
		want(t, "Save of a deleted row", db.Save(&mine).Error, gormlock.ErrStale)
	})
}

type Dated struct {
	ID        uint
	CreatedAt time.Time
	Serial    int64  `gorm:"default:(7)"`
	State     string `gorm:"size:16;default:new"`
	Note      *int64 `gorm:"default:NULL"`
	Version   gormlock.Version
}

// TestVersion_SaveKeepsCreatedAt: Save of a slice writes the columns that GORM writes without a version. It leaves
// the time of creation alone, and what the database fills in.
func TestVersion_SaveKeepsCreatedAt(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Dated{}))
		for name, save := range map[string]func(all []Dated) error{
			"Save":      func(all []Dated) error { return db.Save(&all).Error },
			"UpdateAll": func(all []Dated) error { return db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&all).Error },
		} {
			var was, is Dated
			ok(t, "Create", db.Create(&was).Error)
			ok(t, "Take", db.Take(&was).Error)
			note := int64(3)
			ok(t, name, save([]Dated{{ID: was.ID, Serial: 8, State: "b", Note: &note, Version: 1}}))
			ok(t, "Take", db.Take(&is, was.ID).Error)
			if !is.CreatedAt.Equal(was.CreatedAt) || is.Serial != 7 || is.State != "b" || is.Note == nil || is.Version != 2 {
				t.Errorf("%s: %+v became %+v", name, was, is)
			}
		}
	})
}

// TestVersion_SaveSliceReturning: Save of old and new models that asks for all columns.
func TestVersion_SaveSliceReturning(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		old := Account{Name: "old", Balance: 1}
		ok(t, "Create", db.Create(&old).Error)
		all := []Account{old, {Name: "new", Balance: 2, Notes: []Note{{}}}}
		all[0].Balance = 5
		// In a block, so that a panic rolls back.
		ok(t, "Save", db.Transaction(func(tx *gorm.DB) error {
			return tx.Clauses(clause.Returning{}).Save(&all).Error
		}))
		wantVersion(t, "the old one", all[0].Version, 2)
		wantVersion(t, "the new one", all[1].Version, 1)
		wantRow(t, "the old one", db, old.ID, 5, 2)
		wantRow(t, "the new one", db, all[1].ID, 2, 1)
		if len(all) != 2 || len(all[1].Notes) != 1 || all[1].Notes[0].AccountID != all[1].ID {
			t.Errorf("saved were %+v", all)
		}
		ok(t, "Update", db.Model(&all[1]).Update("balance", 3).Error)
	})
}

// Tallied has a field that is no column of its table. A query with a Select of its own fills it.
type Tallied struct {
	ID      uint
	Name    string `gorm:"size:64"`
	Notes   int64  `gorm:"->;-:migration"`
	Version gormlock.Version
}

// TestVersion_ReturningWithoutColumn: RETURNING * asks for the columns of the table, not for all
// fields.
func TestVersion_ReturningWithoutColumn(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Tallied{}))
		one := Tallied{Name: "one"}
		ok(t, "upsert", db.Clauses(clause.OnConflict{UpdateAll: true}, clause.Returning{}).Create(&one).Error)
		wantVersion(t, "the upsert", one.Version, 1)
		fresh := []Tallied{{Name: "two"}, {Name: "three"}}
		ok(t, "Save of new ones", db.Clauses(clause.Returning{}).Save(&fresh).Error)
		mixed := []Tallied{one, {Name: "four"}} // this one panicked at dcc553c
		ok(t, "Save of both", db.Clauses(clause.Returning{}).Save(&mixed).Error)
		wantVersion(t, "the old one", mixed[0].Version, 2)
		wantVersion(t, "the new one", mixed[1].Version, 1)
		if mixed[1].ID == 0 || mixed[0].ID != one.ID {
			t.Errorf("saved were %+v", mixed)
		}
	})
}

package optimistic_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
)

func TestVersion_CreateFailed(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		theirs, _ := twice(t, db)
		mine := Account{Model: gorm.Model{ID: theirs.ID}, Balance: 100}
		if db.Create(&mine).Error == nil {
			t.Fatal("a second row was created")
		}
		wantVersion(t, "a duplicate", mine.Version, 0)
		want(t, "Save", db.Save(&mine).Error, optimistic.ErrStale)
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
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
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
		want(t, "after the rollback", rename(db), optimistic.ErrStale)
		ok(t, "Take", db.Take(&h).Error)
		ok(t, "committed", db.Transaction(rename))
		ok(t, "after the commit", rename(db))
		wantVersion(t, "after the commit", h.Version, 4)
	})
}

// TestVersion_HookPanicked: a panic in a hook rolls back, with the versions in the models.
func TestVersion_HookPanicked(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		h := Hooked{Name: "h"}
		for version, write := range []func() error{
			func() error { return db.Create(&h).Error },
			func() error { return db.Model(&h).Update("name", "i").Error },
			func() error { return db.Save([]*Hooked{&h}).Error },
		} {
			h.Panic = true
			func() {
				defer func() { _ = recover() }()
				_ = write()
				t.Error("the panic did not arrive")
			}()
			wantVersion(t, "a panic", h.Version, optimistic.Version(version))
			if n := pool(t, db).Stats().InUse; n != 0 {
				t.Fatalf("%d transactions are open", n)
			}
			h.Panic = false
			ok(t, "without a panic", write())
			wantVersion(t, "without a panic", h.Version, optimistic.Version(version+1))
		}
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
		for balance, version := range map[int]optimistic.Version{1: 1, 2: 1, 3: 5, 4: 1} {
			var a Account
			ok(t, "Take", db.Take(&a, "balance = ?", balance).Error)
			wantVersion(t, "a map", a.Version, version)
		}
	})
}

// TestVersion_UpsertRefused: an upsert does not compare versions, so it is refused before it writes.
func TestVersion_UpsertRefused(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, _ := twice(t, db)
		unread := Account{Model: gorm.Model{ID: mine.ID}, Balance: 7}
		columns := []clause.Column{{Name: "id"}}
		for name, upsert := range map[string]clause.OnConflict{
			"DoUpdates": {Columns: columns, DoUpdates: clause.AssignmentColumns([]string{"balance"})},
			"UpdateAll": {UpdateAll: true},
		} {
			for model, a := range map[string]*Account{"read": &mine, "not read": &unread, "new": {}} {
				err := db.Clauses(upsert).Create(a).Error
				want(t, name+", "+model, err, gorm.ErrNotImplemented)
				if err != nil && !strings.Contains(err.Error(), "Create what is new, and write what was read by Save") {
					t.Errorf("%s: the error does not say what to write instead: %v", name, err)
				}
			}
			rows := map[string]any{"id": mine.ID}
			want(t, name+", a map", db.Model(&Account{}).Clauses(upsert).Create(rows).Error, gorm.ErrNotImplemented)
			wantRow(t, name, db, mine.ID, 10, 1)
			wantVersion(t, name, mine.Version+unread.Version, 1)
		}
		var n int64
		if ok(t, "Count", db.Model(&Account{}).Count(&n).Error); n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
	})
}

// TestVersion_UpsertInDisguise: MySQL updates in spite of DoNothing, and SQLite can replace a row.
func TestVersion_UpsertInDisguise(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, _ := twice(t, db)
		for name, c := range map[string]clause.Expression{
			"UpdateAll": clause.OnConflict{DoNothing: true, UpdateAll: true},
			"DoUpdates": clause.OnConflict{DoNothing: true, DoUpdates: clause.AssignmentColumns([]string{"balance"})},
			"REPLACE":   clause.Insert{Modifier: "or replace"},
		} {
			err := db.Clauses(c).Create(&Account{Model: gorm.Model{ID: mine.ID}, Balance: 7}).Error
			want(t, name, err, gorm.ErrNotImplemented)
			wantRow(t, name, db, mine.ID, 10, 1)
		}
	})
}

// TestVersion_DoNothing: an INSERT that ignores rows changes none. Its models were not read.
func TestVersion_DoNothing(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		old, _ := twice(t, db)
		mine := []Account{{Model: gorm.Model{ID: old.ID}, Balance: 100}, {Model: gorm.Model{ID: old.ID + 1000}, Balance: 5}}
		ok(t, "Create", db.Clauses(clause.OnConflict{DoNothing: true}).Omit("Version").Create(&mine).Error)
		wantRow(t, "there", db, mine[0].ID, 10, 1)
		wantRow(t, "new", db, mine[1].ID, 5, 1)
		for i := range mine {
			wantVersion(t, "Create", mine[i].Version, 0)
			want(t, "not read", db.Model(&mine[i]).Update("balance", 1).Error, optimistic.ErrStale)
			ok(t, "Take", db.Take(&mine[i]).Error)
			ok(t, "read", db.Model(&mine[i]).Update("balance", 1).Error)
		}
	})
}

// TestVersion_SaveSlice: Save writes the rows that were read, or none if one of them is stale.
func TestVersion_SaveSlice(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Save of new ones", db.Clauses(clause.Returning{}).Save(&[]Account{{Name: "a"}, {Name: "b"}}).Error)
		var mine, theirs []Account
		ok(t, "Find", errors.Join(db.Order("id").Find(&mine).Error, db.Order("id").Find(&theirs).Error))
		wantVersion(t, "Save of new ones", mine[0].Version*mine[1].Version, 1)
		mine[0].Balance, mine[1].Balance = 5, 6
		res := db.Save(&mine)
		if ok(t, "Save", res.Error); res.RowsAffected != 2 || !mine[1].UpdatedAt.After(theirs[1].UpdatedAt) {
			t.Fatalf("%d rows were saved: %+v", res.RowsAffected, mine)
		}
		wantRow(t, "Save", db, mine[1].ID, 6, 2)
		ok(t, "others", db.Model(&Account{}).Where("id = ?", mine[1].ID).Update("balance", 7).Error)
		mine[0].Balance = 8
		stale := func(tx *gorm.DB) error {
			res := tx.Save(&mine)
			if want(t, "Save, stale", res.Error, optimistic.ErrStale); res.RowsAffected != 0 {
				t.Errorf("a stale Save says that it wrote %d rows", res.RowsAffected)
			}
			wantVersion(t, "Save, stale", mine[0].Version, 2)
			return nil
		}
		ok(t, "alone", stale(db))
		ok(t, "in a block", db.Transaction(stale))
		wantRow(t, "stale", db, mine[0].ID, 5, 2)
		plain := db.Session(&gorm.Session{SkipDefaultTransaction: true})
		want(t, "without a transaction", plain.Save(&mine).Error, gormlock.ErrNoTransaction)
		ok(t, "Take", db.Take(&mine[1]).Error)
		ok(t, "Save", db.Save(&mine).Error)
		ok(t, "one without a transaction", plain.Save(mine[:1]).Error)

		err := db.Save([]*Account{&mine[0], {Name: "new"}}).Error
		want(t, "old and new", err, gorm.ErrNotImplemented)
		if !strings.Contains(err.Error(), "Create the new ones") {
			t.Errorf("the error does not say what to write instead: %v", err)
		}
		ok(t, "Delete", db.Unscoped().Delete(&Account{}, mine[0].ID).Error)
		want(t, "Save of a deleted row", db.Save(&mine).Error, optimistic.ErrStale)
	})
}

// TestVersion_DuplicateInASlice: a slice is saved as a whole or not at all, even if the database
// refuses one of its rows. The transaction can go on.
func TestVersion_DuplicateInASlice(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine := []Hooked{{Name: "a"}, {Name: "b"}, {Name: "c"}}
		ok(t, "Create", db.Create(&mine).Error)
		mine[0].Name, mine[1].Name = "new", "c"
		ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error {
			if tx.Save(mine[:2]).Error == nil {
				t.Error("a duplicate was saved")
			}
			for i := range mine {
				wantVersion(t, "Save", mine[i].Version, 1)
			}
			return tx.Model(&mine[2]).Update("name", "d").Error
		}))
		var names []string
		ok(t, "Pluck", db.Model(&Hooked{}).Order("name").Pluck("name", &names).Error)
		if len(names) != 3 || names[0] != "a" || names[1] != "b" || names[2] != "d" {
			t.Errorf("the names are %q, want a, b and d", names)
		}
	})
}

// TestVersion_StaleBatchErrsOnce: a batch whose first row is stale stops there, and says so once. The
// text must not grow with the rows behind it.
func TestVersion_StaleBatchErrsOnce(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		var mine []Account
		for i := range 12 { // no more: each one doubles the text
			mine = append(mine, Account{Name: fmt.Sprint(i), Balance: 10})
		}
		ok(t, "Create", db.Create(&mine).Error)
		ok(t, "others", db.Model(&Account{}).Where("id > 0").Update("name", "theirs").Error)
		stale := func(tx *gorm.DB) error {
			err := tx.Save(&mine).Error
			want(t, "Save", err, optimistic.ErrStale)
			if err == nil {
				return nil
			}
			if n := strings.Count(err.Error(), optimistic.ErrStale.Error()); n != 1 {
				t.Errorf("Save of %d rows: the error has %d bytes and says %d times that a row is stale",
					len(mine), len(err.Error()), n)
			}
			for i := range mine {
				wantVersion(t, "Save", mine[i].Version, 1)
			}
			return nil
		}
		ok(t, "alone", stale(db))
		ok(t, "in a block", db.Transaction(stale))
		for i := range mine {
			wantRow(t, "after a stale Save", db, mine[i].ID, 10, 2)
		}
	})
}

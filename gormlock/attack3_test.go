package gormlock_test

import (
	"errors"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

type badValue struct{}

func (badValue) Build(b clause.Builder) { _ = b.(*gorm.Statement).AddError(errNo) }

type Big struct {
	ID  uint
	Big uint64
}

type HookD struct {
	ID    uint
	Units int64
	Other int64
	Mode  string           `gorm:"-"`
	Version gormlock.Version
}

func (h *HookD) BeforeUpdate(tx *gorm.DB) error {
	if h.Mode == "nested" {
		_, err := gormlock.Decrement(tx.Model(&HookD{ID: 2}), "units", 1)
		return err
	}
	if h.Mode == "version" {
		return tx.Model(&HookD{ID: 2}).UpdateColumn("other", 5).Error
	}
	return nil
}
func (h *HookD) AfterUpdate(tx *gorm.DB) error {
	if h.Mode == "fail" {
		return errNo
	}
	return nil
}

func TestAttack3(t *testing.T) {
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Big{}, &HookD{}))
		mine, _ := twice(t, db)
		t.Log("version column: ", decrement(db.Model(&mine), "version", 1))
		ok(t, "Take", db.Take(&mine).Error)
		t.Log("version now", mine.Version)
		// an error between WHERE and the end of the statement
		put(t, db, 42, 5)
		err := decrement(db.Model(&Stock{}).Where("sku=42").Clauses(clause.OrderBy{Expression: badValue{}}).Limit(1), "left", 1)
		t.Log(db.Name(), "order: ", err)
		if n := inUse(t, db); n != 0 {
			t.Errorf("%d connections are in use", n)
		}
		err = decrement(db.Scopes(gormlock.Guard("k")).Model(&Stock{}).Where("sku=42").Clauses(clause.OrderBy{Expression: badValue{}}).Limit(1), "left", 1)
		t.Log(db.Name(), "order guarded: ", err)
		if n := inUse(t, db); n != 0 {
			t.Errorf("%d connections are in use", n)
		}
		hs := []HookD{{Units: 5}, {Units: 5}}
		ok(t, "Create", db.Create(&hs).Error)
		hs[0].Mode = "nested"
		left, err := gormlock.Decrement(db.Model(&hs[0]), "units", 2)
		if err != nil || left != 3 {
			t.Error(left, err)
		}
		hs[0].Mode = "fail"
		err = decrement(db.Model(&hs[0]), "units", 2)
		want(t, "after", err, errNo)
		var h HookD
		ok(t, "Take", db.Take(&h, 1).Error)
		var h2 HookD
		ok(t, "Take", db.Take(&h2, 2).Error)
		if h.Units != 3 || h2.Units != 4 || h.Version != 2 || h2.Version != 2 {
			t.Errorf("%+v %+v", h, h2)
		}
		h2.Mode = ""
		// key changes
		ok(t, "PK", db.Model(&h2).Update("id", 77).Error)
		ok(t, "after PK", db.Model(&h2).Update("other", 1).Error)
		// upper bounds
		if db.Name() == "mysql" {
			ok(t, "Exec", db.Exec("INSERT INTO bigs (big) VALUES (18446744073709551615)").Error)
			left, err := gormlock.Decrement(db.Model(&Big{}).Where("big > 5"), "big", 1)
			t.Log("huge", left, err)
		}
		ok(t, "Create", db.Create(&Big{Big: 1<<63 - 1}).Error)
		left, err = gormlock.Decrement(db.Model(&Big{}).Where("big = ?", int64(1<<63-1)), "big", 1)
		if err != nil || left != 1<<63-2 {
			t.Error(left, err)
		}
		left, err = gormlock.Decrement(db.Model(&Big{}).Where("big = ?", int64(1<<63-2)), "big", 1<<63-2)
		if err != nil || left != 0 {
			t.Error(left, err)
		}
		// negative stock
		put(t, db, 44, -5)
		want(t, "negative", decrement(db.Model(&Stock{}).Where("sku=44"), "left", 1), gormlock.ErrInsufficient)
		// plain transaction, failure swallowed, then commit
		err = db.Transaction(func(tx *gorm.DB) error {
			want(t, "plain", decrement(tx.Model(&Stock{}).Where("sku=44"), "left", 1), gormlock.ErrInsufficient)
			_, err := gormlock.DecrementAll(tx.Model(&Stock{}), "sku", "left", map[int]int64{42: 1, 44: 1})
			want(t, "plain all", err, gormlock.ErrInsufficient)
			return tx.Model(&Stock{}).Where("sku=42").Update("name", "x").Error
		})
		ok(t, "plain", err)
		wantLeft(t, db, 42, 5)
		// savepoint handling of versions around stale slices in nested blocks
		both := []Account{{Name: "x"}, {Name: "y"}}
		ok(t, "Create", db.Create(&both).Error)
		stale := both[1]
		ok(t, "y", db.Model(&both[1]).Update("balance", 3).Error)
		err = db.Transaction(func(tx *gorm.DB) error {
			ok(t, "x", tx.Model(&both[0]).Update("balance", 3).Error)
			mixed := []*Account{&both[0], &stale}
			want(t, "mixed", tx.Model(&mixed).Update("balance", 4).Error, gormlock.ErrStale)
			want(t, "mixed save", tx.Save(&mixed).Error, gormlock.ErrStale)
			if both[0].Version != 2 {
				t.Errorf("version %d", both[0].Version)
			}
			inner := tx.Session(&gorm.Session{DisableNestedTransaction: true}).Transaction(func(tx *gorm.DB) error {
				return errors.Join(tx.Model(&both[0]).Update("balance", 5).Error, errNo)
			})
			want(t, "inner", inner, errNo)
			return tx.Model(&both[0]).Update("balance", 6).Error
		})
		ok(t, "block", err)
		ok(t, "after", db.Model(&both[0]).Update("balance", 7).Error)
		ok(t, "after y", db.Model(&both[1]).Update("balance", 7).Error)
		ok(t, "delete", db.Delete(&both).Error)
		_ = core.ErrLost
	})
}

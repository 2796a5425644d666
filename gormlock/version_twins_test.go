package gormlock_test

import (
	"errors"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
)

type Street struct {
	ID      uint
	Name    string `gorm:"size:64"`
	Version gormlock.Version
}

// Trip may have two models of one street.
type Trip struct {
	ID      uint
	Note    string `gorm:"size:64"`
	FromID  *uint
	From    *Street
	ToID    *uint
	To      *Street
	Version gormlock.Version
}

// wantTwins fails unless err says that a row has two models, and does not say that it is stale.
func wantTwins(t *testing.T, what string, err error) {
	t.Helper()
	want(t, what, err, gorm.ErrInvalidData)
	if errors.Is(err, gormlock.ErrStale) || !strings.Contains(err.Error(), "two models of one row") {
		t.Errorf("%s: %v", what, err)
	}
}

// TestVersion_TwoModelsOfOneRow: the first of them makes the second one stale, whoever reads
// again. So they are refused by an error of their own.
func TestVersion_TwoModelsOfOneRow(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Street{}, &Trip{}))
		s := Street{Name: "a"}
		ok(t, "Create", db.Create(&s).Error)
		p := Trip{Note: "old", FromID: &s.ID, ToID: &s.ID}
		ok(t, "Create", db.Create(&p).Error)
		var mine Trip
		ok(t, "Take", db.Preload("From").Preload("To").Take(&mine, p.ID).Error)
		mine.Note = "new"
		ok(t, "Save", db.Save(&mine).Error)
		full := db.Session(&gorm.Session{FullSaveAssociations: true})
		wantTwins(t, "Save of all", full.Save(&mine).Error)
		wantVersion(t, "Save of all", mine.From.Version, 1)
		mine.To = mine.From
		ok(t, "Save of one model", full.Save(&mine).Error)

		first, second := twice(t, db)
		twins := []*Account{&first, &second}
		ok(t, "Update", db.Model(twins).Update("balance", 5).Error)
		wantVersion(t, "Update", first.Version*second.Version, 4)
		wantTwins(t, "Save of a slice", db.Save(twins).Error)
		ok(t, "Save of one model", db.Save([]*Account{&first, &first}).Error)
		want(t, "a stale one", db.Save([]*Account{&second}).Error, gormlock.ErrStale)
	})
}

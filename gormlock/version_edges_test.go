package gormlock_test

import (
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/gormlock"
)

// Hop has a key of two texts.
type Hop struct {
	Origin, Goal string `gorm:"primaryKey;size:16"`
	Seats        int
	Version      gormlock.Version
}

// TestVersion_KeysOfTexts: keys that are one text when their parts are joined are two rows.
func TestVersion_KeysOfTexts(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Hop{}))
		legs := []Hop{{Origin: "a_b", Goal: "c"}}
		ok(t, "Create", db.Create(&legs).Error)
		legs = append(legs, Hop{Origin: "a", Goal: "b_c"})
		ok(t, "Save inserts the second", db.Save(&legs).Error)
		var both []Hop
		ok(t, "Find", db.Find(&both).Error)
		if len(both) != 2 {
			t.Fatalf("%d rows, want 2", len(both))
		}
		theirs := db.Model(&Hop{}).Where("goal = ?", "b_c").Update("seats", 9)
		ok(t, "others", theirs.Error)
		want(t, "one is stale", db.Model(&both).Update("seats", 1).Error, gormlock.ErrStale)
	})
}

// TestVersion_ReturnedInOtherOrder: RETURNING fills a slice in the order of the database.
func TestVersion_ReturnedInOtherOrder(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "mysql" {
			return // MariaDB's UPDATE has no RETURNING
		}
		all := []Account{{Name: "a"}, {Name: "b"}}
		ok(t, "Create", db.Create(&all).Error)
		others := db.Model(&Account{}).Where("name = ?", "a").Update("balance", 9)
		ok(t, "others", others.Error)
		ok(t, "Find", db.Order("id DESC").Find(&all).Error)
		ok(t, "Update", db.Model(&all).Clauses(clause.Returning{}).Update("balance", 5).Error)
		for i := range all {
			ok(t, all[i].Name, db.Model(&all[i]).Update("balance", 6).Error)
		}
	})
}

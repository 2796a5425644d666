package optimistic_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock/optimistic"
)

// TestVersion_DeletedAndRestored: a deleted model creates its row anew, with a version that no
// reader of the old row has.
func TestVersion_DeletedAndRestored(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		row := func() *gorm.DB { return db.Model(&Seat{}).Where("number = 2") }
		ok(t, "Create", db.Create(&Seat{Row: 1, Number: 2}).Error)
		ok(t, "Update", row().Update("taken", false).Error)
		mine := Seat{Row: 1, Number: 2}
		ok(t, "Take", db.Take(&mine).Error)
		theirs := mine
		ok(t, "Delete", db.Delete(&theirs).Error)
		if db.Table("nowhere").Create(&theirs).Error == nil {
			t.Fatal("Create wrote to a table that is not there")
		}
		wantVersion(t, "a failed Create", theirs.Edition, mine.Edition)
		theirs.Taken = true
		ok(t, "Create", db.Create(&theirs).Error)
		var now Seat
		ok(t, "Take", row().Take(&now).Error)
		wantVersion(t, "the row", now.Edition, mine.Edition+1)
		wantVersion(t, "Create", theirs.Edition, mine.Edition+1)
		want(t, "the old row", db.Model(&mine).Update("taken", false).Error, optimistic.ErrStale)
		ok(t, "others", row().Update("taken", true).Error)
		want(t, "the old row", db.Model(&mine).Update("taken", false).Error, optimistic.ErrStale)
	})
}

// TestVersion_CreatedAgain shows the limit: a new row under an old key begins at 1 again. A row
// that is deleted softly keeps its key.
func TestVersion_CreatedAgain(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine := Seat{Row: 1, Number: 2}
		ok(t, "Create", db.Create(&mine).Error)
		ok(t, "Delete", db.Where("number = 2").Delete(&Seat{}).Error)
		ok(t, "Create", db.Create(&Seat{Row: 1, Number: 2}).Error)
		ok(t, "the old row", db.Model(&mine).Update("taken", true).Error)

		old, theirs := twice(t, db)
		ok(t, "soft delete", db.Delete(&theirs).Error)
		if db.Create(&Account{Model: gorm.Model{ID: old.ID}}).Error == nil {
			t.Fatal("the key of a row that is deleted softly was used again")
		}
		want(t, "the old row", db.Unscoped().Model(&old).Update("balance", 5).Error, optimistic.ErrStale)
	})
}

// TestVersion_StatementUsedAgain: what a write demands of the version does not stay in the
// statement.
func TestVersion_StatementUsedAgain(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, theirs := twice(t, db)
		row := db.Model(&mine)
		ok(t, "first", row.Update("balance", 20).Error)
		ok(t, "second", row.Update("balance", 30).Error)
		wantRow(t, "both", db, mine.ID, 30, 3)
		either := db.Model(&mine).Where("balance = 30").Or("balance = 40")
		ok(t, "first", either.Update("balance", 40).Error)
		ok(t, "second", either.Update("name", "b").Error)
		wantRow(t, "both", db, mine.ID, 40, 5)
		want(t, "the old row", db.Model(&theirs).Update("balance", 1).Error, optimistic.ErrStale)
		ok(t, "soft delete", db.Delete(&mine).Error)
		want(t, "a deleted row", row.Update("balance", 50).Error, optimistic.ErrStale)
	})
}

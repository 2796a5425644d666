package gormlock_test

import (
	"testing"

	"gorm.io/gorm"
)

// TestVersion_DuplicateInASlice: a slice is saved as a whole or not at all, also if the database
// refuses one of its rows. The transaction can go on.
func TestVersion_DuplicateInASlice(t *testing.T) {
	t.Parallel()
	hookedDB(t, func(t *testing.T, db *gorm.DB) {
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

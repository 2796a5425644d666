package gormlock_test

import (
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/gormlock"
)

// Dossier belongs to an author, without a foreign key: GORM deletes the author first.
type Dossier struct {
	ID       uint
	Name     string `gorm:"size:64"`
	AuthorID *uint
	Author   *Author `gorm:"constraint:-"`
}

type Author struct {
	ID   uint
	Name string `gorm:"size:64"`
}

// TestAssociation_GenericSetDeletesOwner: GORM begins a transaction for this one association. The
// other parts of the Set come after its COMMIT, under another lock.
func TestAssociation_GenericSetDeletesOwner(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Author{}, &Dossier{}))
		j := record(t, db)
		ok(t, "Create", db.Create(&Dossier{ID: 1, Name: "a", Author: &Author{ID: 1}}).Error)
		change := func(db *gorm.DB) error {
			_, err := gorm.G[Dossier](db).Where("id = ?", 1).Set(
				clause.Association{Association: "Author", Type: clause.OpDelete},
				clause.Assignment{Column: clause.Column{Name: "name"}, Value: "b"},
			).Update(gormlock.WithGuard(t.Context(), "k"))
			return err
		}
		wantAuthors := func(what string, n int64, name string) {
			t.Helper()
			var authors int64
			var d Dossier
			ok(t, "Count", db.Model(&Author{}).Count(&authors).Error)
			ok(t, "Take", db.Take(&d, 1).Error)
			if authors != n || d.Name != name {
				t.Errorf("%s: %d authors and %q, want %d and %q", what, authors, d.Name, n, name)
			}
		}
		j.clear()
		ok(t, "Set", change(db))
		if locks, unlocks := j.count("lock k"), j.count("unlock k"); locks != 2 || unlocks != 2 {
			t.Errorf("Set locked %d times, and unlocked %d times", locks, unlocks)
		}
		wantAuthors("Set", 0, "b")

		ok(t, "Save", db.Save(&Dossier{ID: 1, Name: "a", Author: &Author{ID: 1}}).Error)
		j.clear()
		ok(t, "Set in Transaction", gormlock.Transaction(db, "k", change))
		for _, event := range []string{"lock k", "BEGIN", "COMMIT", "unlock k"} {
			if n := j.count(event); n != 1 {
				t.Errorf("in Transaction %s happened %d times", event, n)
			}
		}
		wantAuthors("Set in Transaction", 0, "b")
	})
}

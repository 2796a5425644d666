package gormlock_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// Digits has a number in a text, as GORM makes the column of a decimal.Decimal on SQLite.
type Digits struct {
	ID   uint
	Left string `gorm:"size:16"`
}

// TestDecrement_TextColumn: SQLite would compare two texts, of which "5" is the greater than "10".
func TestDecrement_TextColumn(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		if db.Name() == "postgres" {
			return // which does not subtract from a text
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&Digits{}))
		for text, rest := range map[string]int64{"5": 0, "5.5": 0, "12": 7} {
			d := Digits{Left: text}
			ok(t, "Create", db.Create(&d).Error)
			want(t, "more than "+text, decrement(db.Model(&d), "left", 20), gormlock.ErrInsufficient)
			ok(t, "3 of "+text, decrement(db.Model(&d), "left", 3))
			left, err := gormlock.Decrement(db.Model(&d), "left", 2)
			if ok(t, "2 of "+text, err); left != rest {
				t.Errorf("%s: %d left, want %d", text, left, rest)
			}
		}
	})
}

package gormlock_test

import (
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

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

// TestDecrement_DroppedClauses: GORM's UPDATE drops a HAVING, and on MySQL a FROM.
func TestDecrement_DroppedClauses(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Depot{}, &Lot{}))
		l := Lot{Depot: Depot{Name: "closed"}, Left: 5}
		ok(t, "Create", db.Create(&l).Error)
		open := clause.Expr{SQL: "depots.id = lots.depot_id AND depots.name = 'open'"}
		join := clause.Join{
			Type: clause.InnerJoin, Table: clause.Table{Name: "depots"},
			ON: clause.Where{Exprs: []clause.Expression{open}},
		}
		row := db.Model(&Lot{}).Where("lots.id = ?", l.ID).Session(&gorm.Session{})
		for name, none := range map[string]*gorm.DB{
			"HAVING": row.Group("id").Having("MAX(depot_id) < ?", 0),
			"FROM":   row.Clauses(clause.From{Joins: []clause.Join{join}}),
		} {
			if left, err := gormlock.Decrement(none, "left", 1); err == nil {
				t.Errorf("%s: the condition names no row, and Decrement took: %d left", name, left)
			}
		}
	})
}

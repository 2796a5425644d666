package gormlock_test

import (
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/stock"
)

// Digits has a number in a text.
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
		for text, rest := range map[string]int64{"5": 0, "12": 7} {
			d := Digits{Left: text}
			ok(t, "Create", db.Create(&d).Error)
			want(t, "more than "+text, decrement(db.Model(&d), "left", 20), stock.ErrInsufficient)
			ok(t, "3 of "+text, decrement(db.Model(&d), "left", 3))
			left, err := stock.Decrement(db.Model(&d), "left", 2)
			if ok(t, "2 of "+text, err); left != rest {
				t.Errorf("%s: %d left, want %d", text, left, rest)
			}
		}
	})
}

// TestDecrement_DroppedClauses: GORM's UPDATE drops joins and a HAVING, and on MySQL a FROM.
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
			"JOIN":   row.InnerJoins("Depot", db.Where(&Depot{Name: "open"})),
			"HAVING": row.Group("id").Having("MAX(depot_id) < ?", 0),
			"FROM":   row.Clauses(clause.From{Joins: []clause.Join{join}}),
		} {
			if left, err := stock.Decrement(none, "left", 1); err == nil {
				t.Errorf("%s: the condition names no row, and Decrement took: %d left", name, left)
			}
		}
	})
}

// TestDecrement_Trigger: the answer of MariaDB has no LAST_INSERT_ID if a trigger of the table inserts.
func TestDecrement_Trigger(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		if db.Name() != "mysql" {
			return
		}
		for _, when := range []string{"AFTER", "BEFORE"} {
			put(t, db, 42, 3)
			ok(t, "CREATE", unprepared(db).Exec("CREATE TRIGGER audit "+when+" UPDATE ON stocks FOR EACH ROW "+
				"INSERT INTO items (stock_id, name) VALUES (NEW.id, 'audit')").Error)
			take := func(tx *gorm.DB, expected int64) error {
				left, err := stock.Decrement(tx.Model(&Stock{}).Where("sku = 42"), "left", 1)
				if err == nil && left != expected {
					t.Errorf("%s: %d left, want %d", when, left, expected)
				}
				return err
			}
			ok(t, "single", take(db, 2))
			inBlock := func(tx *gorm.DB) error { return take(tx, 1) }
			ok(t, "Transaction", gormlock.Transaction(db, "k", inBlock))
			ok(t, "the last", take(db, 0))
			ok(t, "DROP", unprepared(db).Exec("DROP TRIGGER audit").Error)
			ok(t, "Delete", db.Delete(&Stock{}, "sku = 42").Error)
		}
	})
}

// TestDecrement_Associations: GORM would write a new one before it is known that there is too little.
func TestDecrement_Associations(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Depot{}, &Lot{}))
		l := Lot{Depot: Depot{Name: "first"}, Left: 1}
		ok(t, "Create", db.Create(&l).Error)
		for _, expected := range []error{nil, stock.ErrInsufficient} {
			m := Lot{ID: l.ID, Depot: Depot{Name: "second"}}
			want(t, "Decrement", decrement(db.Model(&m), "left", 1), expected)
			var n int64
			if ok(t, "Count", db.Model(&Depot{}).Count(&n).Error); n != 1 {
				t.Errorf("after %v there are %d depots, want 1", expected, n)
			}
		}
	})
}

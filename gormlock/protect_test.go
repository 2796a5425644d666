package gormlock_test

import (
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// QuotedStock has the table of Stock, in quotes.
type QuotedStock struct {
	ID  uint
	SKU int
}

func (QuotedStock) TableName() string { return "`stocks`" }

// TestProtect_QuotedTableName: quotes in a model's table do not hide it.
func TestProtect_QuotedTableName(t *testing.T) {
	t.Parallel()
	for name, protected := range map[string]any{"plain": &Stock{}, "quoted": &QuotedStock{}} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, db *gorm.DB) {
				if db.Name() == "postgres" {
					return // another quote
				}
				ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()), gormlock.Protect(protected))))
				want(t, "Stock", db.Create(&Stock{SKU: 1}).Error, gormlock.ErrUnguarded)
				want(t, "QuotedStock", db.Create(&QuotedStock{SKU: 1}).Error, gormlock.ErrUnguarded)
				ok(t, "another table", db.Delete(&Item{}, 1).Error)
			})
		})
	}
}

// TestProtect_Clauses: clauses may name tables, even in raw SQL and in joins.
func TestProtect_Clauses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" {
			return
		}
		put(t, db, 42, 5)
		ok(t, "Create", db.Create(&Item{StockID: 1, Name: "a"}).Error)
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()), gormlock.Protect(&Stock{}))))
		for _, table := range []string{
			"items JOIN stocks ON stocks.id = items.stock_id", "items,`stocks`",
		} {
			joined := clause.Update{Table: clause.Table{Name: table, Raw: true}}
			err := db.Model(&Item{}).Clauses(joined).Where("items.id = 1").Update("stocks.left", 0).Error
			want(t, table, err, gormlock.ErrUnguarded)
		}
		on := clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "items.stock_id = stocks.id"}}}
		from := clause.From{
			Tables: []clause.Table{{Name: "items"}},
			Joins:  []clause.Join{{Type: clause.InnerJoin, Table: clause.Table{Name: "stocks"}, ON: on}},
		}
		for _, modifier := range []string{"stocks", "items, stocks"} {
			err := db.Clauses(clause.Delete{Modifier: modifier}, from).Where("stocks.sku = 42").Delete(&Item{}).Error
			want(t, modifier, err, gormlock.ErrUnguarded)
		}
		wantLeft(t, db, 42, 5)
		ok(t, "another table", db.Where("1 = 1").Delete(&Item{}).Error)
	})
}

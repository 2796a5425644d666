package gormlock_test

import (
	"errors"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

func TestDecrement(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		put(t, db, 43, 1)
		stock := func(tx *gorm.DB) *gorm.DB { return tx.Model(&Stock{}).Where("sku = ?", 42) }
		var s Stock
		ok(t, "Take", db.Take(&s, "sku = 42").Error)
		ok(t, "column", gormlock.Decrement(stock(db), "left", 1))
		ok(t, "field", gormlock.Decrement(stock(db), "Left", 1))
		ok(t, "by primary key", gormlock.Decrement(db.Model(&s), "left", 1))
		ok(t, "table", gormlock.Decrement(db.Table("stocks").Where("sku = ?", 42), "left", 1))
		ok(t, "guarded", gormlock.Decrement(stock(db.Scopes(gormlock.Guard("k"))), "left", 1))
		ok(t, "condition in a scope", gormlock.Decrement(db.Model(&Stock{}).Scopes(func(db *gorm.DB) *gorm.DB { return db.Where("sku = 42") }), "left", 1))
		ok(t, "block", gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return gormlock.Decrement(stock(tx), "left", 1) }))
		wantLeft(t, db, 42, 3)

		for name, err := range map[string]error{
			"too much":    gormlock.Decrement(stock(db), "left", 4),
			"no such row": gormlock.Decrement(db.Model(&Stock{}).Where("sku = ?", 99), "left", 1),
		} {
			want(t, name, err, gormlock.ErrInsufficient)
			var e *gormlock.InsufficientError
			if !errors.As(err, &e) || e.Table != "stocks" || e.Column != "left" || e.N < 1 || !strings.Contains(err.Error(), `"stocks"`) {
				t.Errorf("%s: %#v", name, e)
			}
		}
		for _, n := range []int64{0, -1} {
			if err := gormlock.Decrement(stock(db), "left", n); err == nil || errors.Is(err, gormlock.ErrInsufficient) {
				t.Errorf("by %d: %v", n, err)
			}
		}
		none := gormlock.Decrement(db.Model(&Stock{}), "left", 1)
		want(t, "no condition", none, gorm.ErrMissingWhereClause)
		if !strings.Contains(none.Error(), `column "left"`) || !strings.Contains(none.Error(), "by a Where") {
			t.Errorf("%v: it must name the column and say what to do", none)
		}
		want(t, "no condition in a table", gormlock.Decrement(db.Table("stocks"), "left", 1), gorm.ErrMissingWhereClause)
		if err := gormlock.Decrement(stock(db), "left; DROP TABLE stocks", 1); err == nil {
			t.Error("a column that does not exist was decremented")
		}
		// An Or must not go around the condition.
		ok(t, "Or", gormlock.Decrement(db.Model(&Stock{}).Where("sku = ?", 42).Or("sku = ?", 43), "left", 2))
		wantLeft(t, db, 43, 1)
		wantLeft(t, db, 42, 1)
		ok(t, "all rows", gormlock.Decrement(db.Session(&gorm.Session{AllowGlobalUpdate: true}).Model(&Stock{}), "left", 1))
		wantLeft(t, db, 43, 0)
		wantIdle(t, db, l, "k")
	})
}

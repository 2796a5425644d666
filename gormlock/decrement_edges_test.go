package gormlock_test

import (
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// Narrow has columns that hold less than an int64, and one whose name needs quotes.
type Narrow struct {
	ID   uint
	Tiny int16
	Mid  *int32
	Odd  int64  `gorm:"column:left-over"`
	Code string `gorm:"size:32"`
}

func narrowDB(t *testing.T, fn func(t *testing.T, db *gorm.DB, l *core.Locker, row *gorm.DB)) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Narrow{}))
		mid := int32(5)
		ok(t, "Create", db.Create(&Narrow{Tiny: 5, Mid: &mid, Odd: 1, Code: "a"}).Error)
		fn(t, db, l, db.Model(&Narrow{}).Where("code = ?", "a").Session(&gorm.Session{}))
	})
}

// TestDecrement_MoreThanFits: a quantity that the column's type cannot hold is too much, as any.
func TestDecrement_MoreThanFits(t *testing.T) {
	narrowDB(t, func(t *testing.T, _ *gorm.DB, _ *core.Locker, row *gorm.DB) {
		for _, column := range []string{"tiny", "mid", "left-over"} {
			for _, n := range []int64{1 << 15, 1 << 40, 1<<63 - 1} {
				want(t, column, decrement(row, column, n), gormlock.ErrInsufficient)
			}
			ok(t, column, decrement(row, column, 1))
		}
	})
}

// TestDecrementAll_ReadsItsColumn: what is left is read from the column, whatever its name, and
// whatever the caller selects.
func TestDecrementAll_ReadsItsColumn(t *testing.T) {
	narrowDB(t, func(t *testing.T, db *gorm.DB, _ *core.Locker, _ *gorm.DB) {
		for column, left := range map[string]int64{"mid": 5, "left-over": 1} {
			cart := map[string]int64{"a": 9}
			_, err := gormlock.DecrementAll(db.Model(&Narrow{}).Select("code"), "code", column, cart)
			if short, _ := errors.AsType[*gormlock.InsufficientError](err); short == nil || short.Left != left {
				t.Errorf("%s: %v, want %d left", column, err, left)
			}
		}
	})
}

func TestSealWhenOut_QuotedColumn(t *testing.T) {
	narrowDB(t, func(t *testing.T, _ *gorm.DB, l *core.Locker, row *gorm.DB) {
		take := func() error {
			guard := row.Scopes(gormlock.Guard("odd"))
			return decrement(guard, "left-over", 1, gormlock.SealWhenOut(time.Minute))
		}
		ok(t, "the last one", take())
		want(t, "none left", take(), gormlock.ErrInsufficient)
		st, err := l.Inspect(t.Context(), "odd")
		if ok(t, "Inspect", err); st.Status != core.Sealed {
			t.Errorf("the key is %v, want it sealed", st.Status)
		}
	})
}

// Bin has a key of two parts, which count from zero.
type Bin struct {
	Row, Number int `gorm:"primaryKey;autoIncrement:false"`
	Units       int64
}

// TestDecrement_ZeroInTheKey: a part of the model's key that is zero names the row as the others do.
func TestDecrement_ZeroInTheKey(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Bin{}))
		ok(t, "Create", db.Create(&[]Bin{{0, 5, 0}, {1, 5, 3}, {2, 0, 4}}).Error)
		empty, full := Bin{Row: 0, Number: 5}, Bin{Row: 2, Number: 0}
		for _, model := range []any{&empty, empty, []Bin{empty}} {
			want(t, "the empty one", decrement(db.Model(model), "units", 1), gormlock.ErrInsufficient)
		}
		left, err := gormlock.Decrement(db.Model(&full), "units", 1)
		if ok(t, "the full one", err); left != 3 {
			t.Errorf("%d left, want 3", left)
		}
		ok(t, "a condition", decrement(db.Model(&Bin{}).Where("number = 5"), "units", 3))
	})
}

// TestDecrement_OfAVersion: a version only rises, or an old read would count as new.
func TestDecrement_OfAVersion(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, _ := twice(t, db)
		want(t, "Decrement", decrement(db.Model(&mine), "version", 1), gorm.ErrInvalidData)
		wantRow(t, "after it", db, mine.ID, 10, 1)
	})
}

// failingOrder fails when the statement is built, behind WHERE.
type failingOrder struct{}

func (failingOrder) Build(b clause.Builder) { _ = b.(*gorm.Statement).AddError(errNo) }

// TestDecrement_FailsUnsent: a statement that fails while it is built gives its connection back.
func TestDecrement_FailsUnsent(t *testing.T) {
	narrowDB(t, func(t *testing.T, db *gorm.DB, _ *core.Locker, row *gorm.DB) {
		if db.Name() != "mysql" {
			return // where an UPDATE has no ORDER BY
		}
		order := clause.OrderBy{Expression: failingOrder{}}
		want(t, "Decrement", decrement(row.Clauses(order), "tiny", 1), errNo)
		if n := inUse(t, db); n != 0 {
			t.Errorf("%d connections are in use", n)
		}
	})
}

package gormlock_test

import (
	"database/sql/driver"
	"errors"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/stock"
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
				want(t, column, decrement(row, column, n), stock.ErrInsufficient)
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
			_, err := stock.DecrementAll(db.Model(&Narrow{}).Select("code"), "code", column, cart)
			if short, _ := errors.AsType[*stock.InsufficientError](err); short == nil || short.Left != left {
				t.Errorf("%s: %v, want %d left", column, err, left)
			}
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
		for _, model := range []any{&empty, empty} {
			want(t, "the empty one", decrement(db.Model(model), "units", 1), stock.ErrInsufficient)
		}
		left, err := stock.Decrement(db.Model(&full), "units", 1)
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

// failing is a condition that fails when the statement is built.
type failing struct{}

func (failing) Build(b clause.Builder) { _ = b.(*gorm.Statement).AddError(errNo) }

// TestDecrement_FailsUnsent: a statement that fails while it is built gives its connection back.
func TestDecrement_FailsUnsent(t *testing.T) {
	narrowDB(t, func(t *testing.T, db *gorm.DB, _ *core.Locker, row *gorm.DB) {
		want(t, "Decrement", decrement(row.Where(failing{}), "tiny", 1), errNo)
		if n := inUse(t, db); n != 0 {
			t.Errorf("%d connections are in use", n)
		}
	})
}

type Depot struct {
	ID   uint
	Name string `gorm:"size:64"`
}

type Lot struct {
	ID      uint
	DepotID uint
	Depot   Depot
	Left    int64
}

// Wine has a hook that writes an order.
type Wine struct {
	ID     uint
	Left   int64
	Orders []WineOrder `gorm:"constraint:OnDelete:CASCADE"`
}

func (w *Wine) AfterUpdate(tx *gorm.DB) error {
	return tx.Create(&WineOrder{WineID: w.ID, Buyer: "hook"}).Error
}

type WineOrder struct {
	ID     uint
	WineID uint
	Buyer  string
}

type FailAfter struct {
	ID   uint
	Left int64
}

func (*FailAfter) AfterUpdate(*gorm.DB) error { return errNo }

// TestDecrement_Slice: GORM forgets a slice's keys if its last model has none.
func TestDecrement_Slice(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Bin{}))
		ok(t, "Create", db.Create(&[]Bin{{1, 5, 0}, {2, 7, 3}}).Error)
		left, err := stock.Decrement(db.Model([]Bin{{Row: 1, Number: 5}, {}}).Where("units > ?", 0), "units", 1)
		if err == nil {
			t.Errorf("bin 1/5 is empty, and bin 2/7 was not named: %d left", left)
		}
	})
}

// TestDecrement_NothingFollowsTooLittle: hooks and associations of a row that was not taken write nothing.
func TestDecrement_NothingFollowsTooLittle(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Wine{}, &WineOrder{}))
		w := Wine{Left: 0}
		ok(t, "Create", db.Create(&w).Error)
		for name, way := range map[string]func(*gorm.DB) *gorm.DB{
			"plain":   func(db *gorm.DB) *gorm.DB { return db },
			"guarded": func(db *gorm.DB) *gorm.DB { return db.Scopes(gormlock.Guard("k")) },
		} {
			m := Wine{ID: w.ID, Orders: []WineOrder{{Buyer: "association"}}}
			want(t, name, decrement(way(db).Model(&m), "left", 1), stock.ErrInsufficient)
			var orders []WineOrder
			ok(t, "Find", db.Find(&orders).Error)
			if len(orders) != 0 {
				t.Errorf("%s: Decrement returned ErrInsufficient, and these orders are committed: %+v", name, orders)
			}
			ok(t, "Delete", db.Exec("DELETE FROM wine_orders").Error)
		}
		// The other warehouse has one: the buyer gets it, with one order.
		other := Wine{Left: 1}
		ok(t, "Create", db.Create(&other).Error)
		ok(t, "fallback", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			err := decrement(tx.Model(&Wine{ID: w.ID}), "left", 1)
			if errors.Is(err, stock.ErrInsufficient) {
				err = decrement(tx.Model(&Wine{ID: other.ID}), "left", 1)
			}
			return err
		}))
		var n int64
		if ok(t, "Count", db.Model(&WineOrder{}).Count(&n).Error); n != 1 {
			t.Errorf("fallback: one bottle was sold, and %d orders are written", n)
		}
	})
}

// TestDecrement_HookAfterTooLittle: a hook has nothing to refuse.
func TestDecrement_HookAfterTooLittle(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&FailAfter{}))
		r := FailAfter{Left: 0}
		ok(t, "Create", db.Create(&r).Error)
		err := decrement(db.Scopes(gormlock.Guard("k")).Model(&r), "left", 1)
		want(t, "nothing was taken, so there is nothing for AfterUpdate to refuse", err, stock.ErrInsufficient)
	})
}

type binaryKey [16]byte

func (u binaryKey) Value() (driver.Value, error) { return u[:], nil }
func (u *binaryKey) Scan(v any) error            { copy(u[:], v.([]byte)); return nil }

type Crate struct {
	ID   binaryKey `gorm:"type:binary(16);primaryKey"`
	Left int64
}

// TestDecrement_BinaryKey: the error names the row.
func TestDecrement_BinaryKey(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		if db.Name() == "postgres" {
			ok(t, "Create table", db.Exec(`CREATE TABLE IF NOT EXISTS crates (id bytea primary key, "left" bigint)`).Error)
		} else {
			ok(t, "AutoMigrate", db.AutoMigrate(&Crate{}))
		}
		a, b := binaryKey{1, 2, 3, 250}, binaryKey{9, 9, 9, 250}
		ok(t, "Create", db.Create(&[]Crate{{ID: a}, {ID: b}}).Error)
		ea := decrement(db.Model(&Crate{ID: a}), "left", 1)
		eb := decrement(db.Model(&Crate{ID: b}), "left", 1)
		if ea.Error() == eb.Error() {
			t.Errorf("two rows have one text: %v", ea)
		}
	})
}

// A gorm.DB that has run a query already is as good as a new one.
func TestDecrement_AfterQuery(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 3)
		row := db.Model(&Stock{}).Where("sku = ?", 42)
		var n int64
		ok(t, "Count", row.Count(&n).Error)
		left, err := stock.Decrement(row, "left", 1)
		if ok(t, "Decrement", err); left != 2 {
			t.Errorf("%d are left, not 2", left)
		}
	})
}

package gormlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/testutil"
)

// decrement is for tests that do not look at what is left.
func decrement(db *gorm.DB, column string, n int64) error {
	_, err := stock.Decrement(db, column, n)
	return err
}

func TestDecrement(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 20)
		put(t, db, 43, 1)
		var s Stock
		ok(t, "Take", db.Take(&s, "sku = 42").Error)
		row := func(tx *gorm.DB) *gorm.DB { return tx.Model(&Stock{}).Where("sku = ?", 42) }
		byScope := func(db *gorm.DB) *gorm.DB { return db.Where("sku = 42") }
		inBlock := func(left *int64) func(tx *gorm.DB) error {
			return func(tx *gorm.DB) (err error) {
				*left, err = stock.Decrement(row(tx), "left", 1)
				return err
			}
		}
		expected := int64(20)
		for name, take := range map[string]func() (int64, error){
			"column":      func() (int64, error) { return stock.Decrement(row(db), "left", 1) },
			"field":       func() (int64, error) { return stock.Decrement(row(db), "Left", 1) },
			"primary key": func() (int64, error) { return stock.Decrement(db.Model(&s), "left", 1) },
			"value":       func() (int64, error) { return stock.Decrement(db.Model(s), "left", 1) },
			"table": func() (int64, error) {
				return stock.Decrement(db.Table("stocks").Where("sku = ?", 42), "left", 1)
			},
			"alias": func() (int64, error) {
				return stock.Decrement(db.Table("stocks AS s").Where("s.sku = ?", 42), "left", 1)
			},
			"guarded": func() (int64, error) {
				return stock.Decrement(row(db.Scopes(gormlock.Guard("k"))), "left", 1)
			},
			"scope": func() (int64, error) { return stock.Decrement(db.Model(&Stock{}).Scopes(byScope), "left", 1) },
			"hooks skipped": func() (int64, error) {
				return stock.Decrement(row(db.Session(&gorm.Session{SkipHooks: true})), "left", 1)
			},
			"no default transaction": func() (int64, error) {
				return stock.Decrement(row(db.Session(&gorm.Session{SkipDefaultTransaction: true})), "left", 1)
			},
			"Transaction": func() (left int64, err error) {
				err = gormlock.Transaction(db, "k", inBlock(&left))
				return left, err
			},
			"plain transaction": func() (left int64, err error) {
				err = db.Transaction(inBlock(&left))
				return left, err
			},
		} {
			expected--
			left, err := take()
			if ok(t, name, err); left != expected {
				t.Errorf("%s: it says that %d are left, want %d", name, left, expected)
			}
			wantLeft(t, db, 42, expected)
		}
		eventually(t, "the key is free", func() bool { return !held(t, l, "k") && inUse(t, db) == 0 })
	})
}

func TestDecrement_NotEnough(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 3)
		for name, row := range map[string]*gorm.DB{
			"42": db.Model(&Stock{}).Where("sku = ?", 42),
			"99": db.Model(&Stock{}).Where("sku = ?", 99),
		} {
			err := decrement(row, "left", 4)
			want(t, name, err, stock.ErrInsufficient)
			short, _ := errors.AsType[*stock.InsufficientError](err)
			if expected := (stock.InsufficientError{Table: "stocks", Row: "sku = " + name, Column: "left", N: 4, Left: -1}); *short != expected {
				t.Errorf("%s: %+v, want %+v", name, *short, expected)
			}
			for _, part := range []string{`"stocks"`, `"left"`, "sku = " + name, "4 wanted"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v: it does not say %s", err, part)
				}
			}
		}
		wantLeft(t, db, 42, 3)
	})
}

func TestDecrement_Refused(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 3)
		row := db.Model(&Stock{}).Where("sku = ?", 42).Session(&gorm.Session{})
		for _, n := range []int64{0, -1} {
			if err := decrement(row, "left", n); err == nil || errors.Is(err, stock.ErrInsufficient) {
				t.Errorf("by %d: %v", n, err)
			}
		}
		none := decrement(db.Model(&Stock{}), "left", 1)
		want(t, "no condition", none, gorm.ErrMissingWhereClause)
		if !strings.Contains(none.Error(), `column "left"`) || !strings.Contains(none.Error(), "by a Where") {
			t.Errorf("%v: it must name the column and say what to do", none)
		}
		want(t, "no condition in a table", decrement(db.Table("stocks"), "left", 1), gorm.ErrMissingWhereClause)
		want(t, "only the soft delete", decrement(db.Model(&Retired{}), "left", 1), gorm.ErrMissingWhereClause)
		want(t, "DryRun", decrement(row.Session(&gorm.Session{DryRun: true}), "left", 1), gorm.ErrDryRunModeUnsupported)
		if err := decrement(row, "left; DROP TABLE stocks", 1); err == nil {
			t.Error("a column that does not exist was decremented")
		}
		if err := decrement(db.Model(&Stock{}).Where("sku = ? AND (", 42), "left", 1); err == nil {
			t.Error("a condition that is no SQL was taken")
		}
		wantLeft(t, db, 42, 3)
		wantIdle(t, db, l)
	})
}

// Tray has a column that updates may not write, and hooks that change the statement.
type Tray struct {
	ID        uint
	SKU       int
	Name      string `gorm:"size:64"`
	Left      int64  `gorm:"<-:create"`
	Hidden    int64  `gorm:"->"`
	Closed    int64  `gorm:"<-:false"`
	UpdatedAt int64
	DeletedAt gorm.DeletedAt
}

// Retired has rows that are deleted softly.
type Retired struct {
	ID        uint
	SKU       int
	Left      int64
	DeletedAt gorm.DeletedAt
}

type trayHook struct{} // in a context: func(*gorm.Statement)

func (*Tray) BeforeUpdate(tx *gorm.DB) error {
	if change, ok := tx.Statement.Context.Value(trayHook{}).(func(*gorm.Statement)); ok {
		change(tx.Statement)
	}
	return nil
}

// trays makes two trays: 42 with 3 in each column, and 43 with 100.
func trays(t *testing.T, db *gorm.DB) {
	t.Helper()
	ok(t, "AutoMigrate", db.AutoMigrate(&Tray{}))
	ok(t, "Exec", db.Exec("DELETE FROM trays").Error)
	for _, row := range [][2]int64{{42, 3}, {43, 100}} {
		ok(t, "Create", db.Create(&Tray{SKU: int(row[0]), Left: row[1]}).Error)
	}
	ok(t, "Exec", db.Exec("UPDATE trays SET hidden = 3, closed = 3").Error)
}

// TestDecrement_WritesItsColumn: no permission, Select, Omit or hook keeps Decrement from taking, or
// makes it take more.
func TestDecrement_WritesItsColumn(t *testing.T) {
	t.Parallel()
	hook := func(change func(*gorm.Statement)) func(*gorm.DB) *gorm.DB {
		return func(db *gorm.DB) *gorm.DB {
			return db.WithContext(context.WithValue(db.Statement.Context, trayHook{}, change))
		}
	}
	same := func(db *gorm.DB) *gorm.DB { return db }
	ways := map[string]func(*gorm.DB) *gorm.DB{
		"permissions":   same,
		"Select":        func(db *gorm.DB) *gorm.DB { return db.Select("name") },
		"Select others": func(db *gorm.DB) *gorm.DB { return db.Select("name", "updated_at") },
		"Omit":          func(db *gorm.DB) *gorm.DB { return db.Omit("left", "hidden", "closed") },
		"Unscoped":      func(db *gorm.DB) *gorm.DB { return db.Unscoped() },
		"SkipHooks":     func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{SkipHooks: true}) },
		"Returning":     func(db *gorm.DB) *gorm.DB { return db.Clauses(clause.Returning{}) },
		"Session": func(db *gorm.DB) *gorm.DB {
			return db.Scopes(func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{}).Where("1 = 1") })
		},
		"hook selects": hook(func(s *gorm.Statement) { s.Selects = []string{"name"} }),
		"hook omits":   hook(func(s *gorm.Statement) { s.Omits = []string{"left", "hidden", "closed"} }),
		"hook sets": hook(func(s *gorm.Statement) {
			s.SetColumn("Left", 77)
			s.SetColumn("name", "changed")
		}),
		"hook sets the map": hook(func(s *gorm.Statement) { s.Dest = map[string]any{"name": "changed"} }),
		"hook drops WHERE": hook(func(s *gorm.Statement) {
			s.AddClause(clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "1 = 1"}}})
		}),
		"hook adds Or": hook(func(s *gorm.Statement) {
			s.AddClause(clause.Where{Exprs: []clause.Expression{clause.Or(clause.Expr{SQL: "sku = 0"})}})
		}),
		"no default transaction": func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{SkipDefaultTransaction: true}) },
	}
	each(t, func(t *testing.T, db *gorm.DB) { // without the plugin, which Decrement does not need
		for name, way := range ways {
			for _, column := range []string{"left", "hidden", "closed"} {
				trays(t, db)
				sold := 0
				for i := range 5 {
					left, err := stock.Decrement(way(db.Model(&Tray{}).Where("sku = ?", 42)), column, 1)
					switch {
					case err == nil:
						sold++
						if left != int64(2-i) {
							t.Errorf("%s, %s: %d left after %d were taken", name, column, left, i+1)
						}
					case !errors.Is(err, stock.ErrInsufficient):
						t.Fatalf("%s, %s: %v", name, column, err)
					}
				}
				var rest []int64
				ok(t, "Pluck", db.Model(&Tray{}).Order("sku").Pluck(column, &rest).Error)
				if untouched := map[string]int64{"left": 100}[column]; sold != 3 || rest[0] != 0 || untouched != 0 && rest[1] != untouched {
					t.Errorf("%s, %s: %d sold of 3, left are %v", name, column, sold, rest)
				}
			}
		}
	})
}

// TestDecrement_HookReplaces: if a hook takes the statement away, Decrement does not return nil.
func TestDecrement_HookReplaces(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		trays(t, db)
		for name, change := range map[string]func(*gorm.Statement){
			"SQL":    func(s *gorm.Statement) { s.SQL.WriteString("UPDATE trays SET name = 'x' WHERE sku = 42") },
			"SET":    func(s *gorm.Statement) { delete(s.Clauses, "SET") },
			"map":    func(s *gorm.Statement) { delete(s.Clauses, "SET"); s.Dest = map[string]any{"name": "x"} },
			"DryRun": func(s *gorm.Statement) { s.DB.DryRun = true },
		} {
			db := db.WithContext(context.WithValue(t.Context(), trayHook{}, change))
			err := decrement(db.Model(&Tray{}).Where("sku = ?", 42), "left", 1)
			if err == nil || errors.Is(err, stock.ErrInsufficient) || !strings.Contains(err.Error(), "hook") {
				t.Errorf("%s: %v", name, err)
			}
		}
		var left int64
		ok(t, "Pluck", db.Session(&gorm.Session{NewDB: true}).Model(&Tray{}).Where("sku = 42").Pluck("left", &left).Error)
		if left != 3 {
			t.Errorf("%d left, want 3", left)
		}
	})
}

// TestDecrement_Conditions: every condition counts, however it is written.
func TestDecrement_Conditions(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		trays(t, db)
		gone := Tray{SKU: 44, Left: 5}
		ok(t, "Create", db.Create(&gone).Error)
		ok(t, "Delete", db.Delete(&gone).Error)
		var first Tray
		ok(t, "Take", db.Take(&first, "sku = 42").Error)
		put(t, db, 42, 3)
		put(t, db, 43, 100)
		var row Stock
		ok(t, "Take", db.Take(&row, "sku = 42").Error)
		for name, row := range map[string]*gorm.DB{
			"soft-deleted":          db.Model(&Tray{}).Where("sku = ?", 44),
			"Or with too little":    db.Model(&Tray{}).Where("sku = ?", 42).Or("sku = ?", 41),
			"primary key and Or":    db.Model(&row).Where("sku = ?", 43).Or("sku = ?", 42),
			"primary key and Where": db.Model(&first).Where("sku = ?", 43),
			"Not":                   db.Model(&Tray{}).Not("sku = ?", 43),
			"or at a line break":    db.Model(&Tray{}).Where("sku = 41 OR\nsku = 42"),
			"or after a tab":        db.Model(&Tray{}).Where("sku = 41\n\tOR sku = 42"),
			"only an Or":            db.Model(&Tray{}).Or("sku = 41 OR sku = 42"),
			"text with or":          db.Model(&Tray{}).Where("sku = 42").Where("name = '' OR 1 = 1"),
			"unscoped":              db.Unscoped().Model(&Tray{}).Where("sku = ?", 44),
		} {
			want(t, name, decrement(row, "left", 6), stock.ErrInsufficient)
		}
		ok(t, "unscoped", decrement(db.Unscoped().Model(&Tray{}).Where("sku = ?", 44), "left", 5))
		ok(t, "Or", decrement(db.Model(&Tray{}).Where("sku = ?", 43).Or("sku = ?", 41), "left", 100))
	})
}

// TestDecrement_SeveralRows: they are refused, nothing is taken, and an open transaction ends.
func TestDecrement_SeveralRows(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 3)
		put(t, db, 43, 5)
		both := func(db *gorm.DB) *gorm.DB { return db.Model(&Stock{}).Where("sku IN ?", []int{42, 43}) }
		ignores := func(tx *gorm.DB) error {
			ok(t, "Update", tx.Model(&Stock{}).Where("sku = 42").Update("name", "other").Error)
			if err := decrement(both(tx), "left", 1); err == nil || !strings.Contains(err.Error(), "2 rows") {
				t.Errorf("in a transaction: %v", err)
			}
			return nil
		}
		var models []Stock
		ok(t, "Find", db.Find(&models).Error)
		for name, err := range map[string]error{
			"single":                 decrement(both(db), "left", 1),
			"guarded":                decrement(both(db.Scopes(gormlock.Guard("k"))), "left", 1),
			"no default transaction": decrement(both(db.Session(&gorm.Session{SkipDefaultTransaction: true})), "left", 1),
			"global update":          decrement(db.Session(&gorm.Session{AllowGlobalUpdate: true}).Model(&Stock{}), "left", 1),
			"slice of models":        decrement(db.Model(&models), "left", 1),
			"transaction":            db.Transaction(ignores),
			"nested": db.Transaction(func(tx *gorm.DB) error {
				_ = tx.Transaction(ignores)
				return nil
			}),
			"Transaction": gormlock.Transaction(db, "k", ignores),
		} {
			if err == nil || errors.Is(err, stock.ErrInsufficient) {
				t.Errorf("%s: %v", name, err)
			}
		}
		wantLeft(t, db, 42, 3)
		wantLeft(t, db, 43, 5)
		var renamed int64
		ok(t, "Count", db.Model(&Stock{}).Where("name = ?", "other").Count(&renamed).Error)
		if renamed != 0 {
			t.Error("a transaction that took from two rows was committed")
		}
		eventually(t, "the key is free", func() bool { return !held(t, l, "k") && inUse(t, db) == 0 })
		only := db.Session(&gorm.Session{AllowGlobalUpdate: true}).Model(&Stock{}).Where("sku <> 42")
		ok(t, "one row", decrement(only, "left", 5))
	})
}

// TestDecrement_SeveralWithoutPlugin: the same on a database that does not have it.
func TestDecrement_SeveralWithoutPlugin(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 3)
		put(t, db, 43, 5)
		err := db.Transaction(func(tx *gorm.DB) error {
			ok(t, "sku 42", decrement(tx.Model(&Stock{}).Where("sku = 42"), "left", 1))
			if decrement(tx.Model(&Stock{}).Where("sku > 0"), "left", 1) == nil {
				t.Error("two rows were taken from")
			}
			return nil
		})
		if err == nil {
			t.Error("the transaction was committed")
		}
		wantLeft(t, db, 42, 3)
		wantLeft(t, db, 43, 5)
	})
}

// Measure has columns of other types.
type Measure struct {
	ID    uint
	Small uint8
	Big   uint64
	Maybe *int16
}

func TestDecrement_ColumnTypes(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Measure{}))
		m := Measure{Small: 200, Big: 1 << 62, Maybe: new(int16)}
		*m.Maybe = 5
		ok(t, "Create", db.Create(&m).Error)
		for column, expected := range map[string]int64{"small": 197, "big": 1<<62 - 3, "maybe": 2} {
			left, err := stock.Decrement(db.Model(&m), column, 3)
			if ok(t, column, err); left != expected {
				t.Errorf("%s: %d left, want %d", column, left, expected)
			}
		}
		var after Measure
		ok(t, "Take", db.Take(&after).Error)
		if after.Small != 197 || after.Big != 1<<62-3 || *after.Maybe != 2 {
			t.Errorf("stored is %+v", after)
		}
	})
}

// TestDecrement_RoundTrips: what is left comes with the answer to the UPDATE.
func TestDecrement_RoundTrips(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		put(t, db, 42, 10)
		put(t, db, 43, 10)
		j := record(t, db)
		take := func(db *gorm.DB) error { return decrement(db.Model(&Stock{}).Where("sku = 42"), "left", 1) }
		ok(t, "Decrement", take(db))
		j.want(t, "alone", "BEGIN", "UPDATE", "COMMIT")
		ok(t, "Transaction", db.Transaction(take))
		j.want(t, "in a transaction", "BEGIN", "UPDATE", "COMMIT")
		ok(t, "Decrement", take(db.Scopes(gormlock.Guard("k"))))
		j.want(t, "guarded", "lock k", "BEGIN", "UPDATE", "COMMIT", "unlock k")
		cart := func(db *gorm.DB) error {
			_, err := stock.DecrementAll(db.Model(&Stock{}), "sku", "left", map[int]int64{42: 1, 43: 1})
			return err
		}
		ok(t, "DecrementAll", cart(db))
		j.want(t, "a cart", "BEGIN", "UPDATE", "UPDATE", "COMMIT")
		ok(t, "DecrementAll", db.Transaction(cart))
		j.want(t, "a cart in a transaction", "BEGIN", "SAVE", "UPDATE", "UPDATE", "RELEASE", "COMMIT")
	})
}

package gormlock_test

import (
	"runtime"
	"strings"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// neededCallbacks are the callbacks of GORM that guards rely on, by the operation that has them.
var neededCallbacks = map[string][]string{
	"create": {"gorm:begin_transaction", "gorm:before_create", "gorm:save_before_associations", "gorm:create",
		"gorm:save_after_associations", "gorm:after_create", "gorm:commit_or_rollback_transaction"},
	"update": {"gorm:begin_transaction", "gorm:setup_reflect_value", "gorm:before_update",
		"gorm:save_before_associations", "gorm:update", "gorm:save_after_associations", "gorm:after_update",
		"gorm:commit_or_rollback_transaction"},
	"delete": {"gorm:begin_transaction", "gorm:before_delete", "gorm:delete_before_associations", "gorm:delete",
		"gorm:after_delete", "gorm:commit_or_rollback_transaction"},
	"raw": {"gorm:raw"},
}

func TestNew_CallbackMissing(t *testing.T) {
	t.Parallel()
	remove := func(db *gorm.DB, operation, name string) error {
		switch all := db.Callback(); operation {
		case "create":
			return all.Create().Remove(name)
		case "update":
			return all.Update().Remove(name)
		case "delete":
			return all.Delete().Remove(name)
		}
		return db.Callback().Raw().Remove(name)
	}
	for operation, names := range neededCallbacks {
		for _, name := range names {
			db := openNothing(t, false)
			before := db.ConnPool
			ok(t, "Remove", remove(db, operation, name))
			err := db.Use(gormlock.New(nil))
			if err == nil || !strings.Contains(err.Error(), `"`+name+`" of `+operation+` is missing`) {
				t.Errorf("%s of %s is missing, and Use returned %v", name, operation, err)
			}
			if db.ConnPool != before {
				t.Errorf("%s of %s is missing, and the connection pool is a %T", name, operation, db.ConnPool)
			}
		}
	}
}

// TestNew_NoDefaultTransaction opens databases without default transactions, and so without the
// callbacks that begin and end them.
func TestNew_NoDefaultTransaction(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		ok(t, "take", take(db.Scopes(gormlock.Guard("k")), 42))
		want(t, "Create", db.Scopes(gormlock.Guard("k")).Create(&Acting{SKU: 1, Name: "fail in AfterCreate"}).Error, errHook)
		wantLeft(t, db, 42, 9)
		wantStocks(t, db, 1)
		wantIdle(t, db, l, "k")
	}, config(func(c *gorm.Config) { c.SkipDefaultTransaction = true }))
}

func wantStocks(t *testing.T, db *gorm.DB, n int64) {
	t.Helper()
	var rows int64
	ok(t, "Count", db.Model(&Stock{}).Count(&rows).Error)
	if rows != n {
		t.Errorf("%d stocks, want %d", rows, n)
	}
}

// TestGuard_CallbackAfterCommit reads from another connection in callbacks that run after GORM's
// own COMMIT.
func TestGuard_CallbackAfterCommit(t *testing.T) {
	t.Parallel()
	forms := map[string]func(db *gorm.DB) error{
		"create": func(db *gorm.DB) error { return db.Create(&Stock{SKU: 1, Items: []Item{{Name: "a"}}}).Error },
		"update": func(db *gorm.DB) error { return take(db, 42) },
		"delete": func(db *gorm.DB) error { return db.Where("sku = ?", 42).Delete(&Stock{}).Error },
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		total := func() (rows, left int64) {
			read := pool(t, db).QueryRowContext(t.Context(), "SELECT COUNT(*), COALESCE(SUM("+quote(db, "left")+"), 0) FROM stocks")
			ok(t, "Scan", read.Scan(&rows, &left))
			return rows, left
		}
		var rows, left int64
		calls := 0
		after := func(tx *gorm.DB) {
			if tx.Statement.Table != "stocks" {
				return
			}
			calls++
			rows, left = total()
			if held(t, l, "k") {
				t.Error("the key is still locked")
			}
			if _, err := gormlock.Token(tx); err == nil {
				t.Error("the statement is still in its transaction")
			}
		}
		const commit = "gorm:commit_or_rollback_transaction"
		put(t, db, 42, 10)
		ok(t, "Register", db.Callback().Create().After(commit).Register("after", after))
		ok(t, "Register", db.Callback().Update().After(commit).Register("after", after))
		ok(t, "Register", db.Callback().Delete().After(commit).Register("after", after))
		for _, name := range []string{"create", "update", "delete"} {
			calls, rows, left = 0, -1, -1
			ok(t, name, forms[name](db.Scopes(gormlock.Guard("k"))))
			if r, n := total(); calls != 1 || rows != r || left != n {
				t.Errorf("%s: %d calls saw %d rows with %d left, and %d with %d are there", name, calls, rows, left, r, n)
			}
			wantIdle(t, db, l, "k")
		}
	})
}

func quote(db *gorm.DB, name string) string { return (&gorm.Statement{DB: db}).Quote(name) }

// TestGuard_ForeignCallbackPanics panics in a callback that another plugin registered, with a
// context that never ends.
func TestGuard_ForeignCallbackPanics(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		panics := true
		boom := func(*gorm.DB) {
			if panics {
				panic("boom")
			}
		}
		ok(t, "Register", db.Callback().Update().Before("gorm:after_update").Register("boom", boom))
		ok(t, "Register", db.Callback().Raw().After("gorm:raw").Register("boom", boom))
		for name, write := range map[string]func(db *gorm.DB) error{
			"update": func(db *gorm.DB) error { return take(db, 42) },
			"raw": func(db *gorm.DB) error {
				return db.Exec("UPDATE stocks SET name = ? WHERE sku = 42", "new").Error
			},
		} {
			panics = true
			func() {
				defer func() {
					if recover() != "boom" {
						t.Errorf("%s: the panic did not arrive", name)
					}
				}()
				_ = write(db.Scopes(gormlock.Guard("k")))
			}()
			eventually(t, name+": rolled back and unlocked", func() bool {
				runtime.GC()
				return !held(t, l, "k") && inUse(t, db) == 0
			})
			panics = false
			ok(t, name, write(db.Scopes(gormlock.Guard("k"))))
		}
		wantLeft(t, db, 42, 9)

		used := db.Model(&Stock{}).Scopes(gormlock.Guard("k")).Where("sku = ?", 42)
		var stock Stock
		ok(t, "Take", db.Take(&stock, "sku = ?", 42).Error)
		half := func(tx *gorm.DB) {
			if panics {
				ok(t, "Create", tx.Session(&gorm.Session{NewDB: true}).Create(&Item{StockID: stock.ID}).Error)
				panic("boom")
			}
		}
		ok(t, "Register", db.Callback().Update().Before("gorm:before_update").Register("half", half))
		panics = true
		func() {
			defer func() { _ = recover() }()
			used.Update("name", "new")
		}()
		panics = false
		ok(t, "the same statement again", used.Update("name", "again").Error)
		var items int64
		ok(t, "Count", db.Model(&Item{}).Count(&items).Error)
		if items != 0 {
			t.Error("the statement that panicked was committed by the next one")
		}
		wantIdle(t, db, l, "k")
	}, config(func(c *gorm.Config) { c.Logger = logger.Discard }))
}

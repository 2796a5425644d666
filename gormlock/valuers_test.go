package gormlock_test

import (
	"database/sql"
	"database/sql/driver"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

type panicking struct{}

func (panicking) Value() (driver.Value, error) { panic("valuer") }

type nilPanics struct{ name string }

func (n *nilPanics) Value() (driver.Value, error) { return n.name, nil }

// TestPanics_OfArguments: an argument that panics on its way to the database is a panic of the block, and holds nobody up.
// database/sql itself waits forever then if it queries or has prepared the statement.
func TestPanics_OfArguments(t *testing.T) {
	t.Parallel()
	var none *nilPanics
	fns := map[string]func(tx *gorm.DB) error{
		"Exec": func(tx *gorm.DB) error { return tx.Exec("UPDATE stocks SET name = ? WHERE sku = 1", panicking{}).Error },
		"Row": func(tx *gorm.DB) error {
			return tx.Raw("SELECT id FROM stocks WHERE name = ?", panicking{}).Row().Err()
		},
		"Find": func(tx *gorm.DB) error { return tx.Where("name = ?", panicking{}).Find(&[]Stock{}).Error },
		"nil":  func(tx *gorm.DB) error { return tx.Where("name = ?", none).Find(&[]Stock{}).Error },
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 100)
		n := int64(100)
		for name, fn := range fns {
			func() {
				defer func() {
					if p := recover(); p == nil {
						t.Errorf("%s: no panic", name)
					}
				}()
				_ = gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
					ok(t, name, take(tx, 42))
					return fn(tx)
				})
			}()
			wantLeft(t, db, 42, n)
			wantIdle(t, db, l, "k")
		}
		var null *sql.NullString
		ok(t, "those that do not panic", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			return tx.Find(&[]Stock{}, "name = ? OR name = ?", null, &sql.NullString{String: "x", Valid: true}).Error
		}))
	})
}

type countingValuer struct{ n int }

func (a *countingValuer) Value() (driver.Value, error) {
	a.n++
	return "x", nil
}

// TestUnguarded_ArgumentsAreAskedAsOften as without the plugin: what their Value does may be seen, or take its time.
func TestUnguarded_ArgumentsAreAskedAsOften(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		count := func() int {
			var a countingValuer
			ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error {
				want(t, "Scan", tx.Raw("SELECT id FROM items WHERE name = ?", &a).Row().Scan(new(int)), sql.ErrNoRows)
				return tx.Find(&[]Item{}, "name = ?", &a).Error
			}))
			return a.n
		}
		without := count()
		ok(t, "Use", db.Use(gormlock.New(nil)))
		if with := count(); with != without {
			t.Errorf("%d times with the plugin, %d without it", with, without)
		}
	})
}

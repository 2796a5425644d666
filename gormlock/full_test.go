package gormlock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// large is a name that needs new pages.
var large = strings.Repeat("x", 1<<20)

// fill lets the connections of a SQLite have hardly more pages than there are, as on a full disk.
// Small writes still fit in. A large write fails and takes its whole transaction along.
func fill(t *testing.T, db *gorm.DB) {
	t.Helper()
	pool(t, db).SetMaxOpenConns(1) // to which the limit belongs
	var pages int
	ok(t, "page_count", db.Raw("PRAGMA page_count").Row().Scan(&pages))
	ok(t, "max_page_count", db.Raw(fmt.Sprintf("PRAGMA max_page_count = %d", pages+8)).Row().Scan(&pages))
}

// fulls are statements that fail on a full disk.
var fulls = map[string]func(tx *gorm.DB) error{
	"Exec": func(tx *gorm.DB) error {
		return tx.Exec("INSERT INTO items (stock_id, name) VALUES (1, ?)", large).Error
	},
	"Create": func(tx *gorm.DB) error { return tx.Create(&Item{StockID: 1, Name: large}).Error },
	"an association": func(tx *gorm.DB) error {
		return tx.Create(&Stock{SKU: 43, Items: []Item{{Name: large}}}).Error
	},
	"Row": func(tx *gorm.DB) error {
		return tx.Raw("INSERT INTO items (stock_id, name) VALUES (1, ?) RETURNING id", large).Row().Scan(new(int))
	},
	"Rows": func(tx *gorm.DB) error {
		rows, err := tx.Raw("INSERT INTO items (stock_id, name) VALUES (1, ?) RETURNING id", large).Rows()
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
		}
		return rows.Err()
	},
	"Scan": func(tx *gorm.DB) error {
		return tx.Raw("INSERT INTO items (stock_id, name) VALUES (1, ?) RETURNING id", large).Scan(new(int)).Error
	},
}

// TestFull_NothingIsCommittedAlone: SQLite rolls a transaction back by itself when the disk is
// full. No caller gets success, and nothing stays of what a careless function does after the
// rollback.
func TestFull_NothingIsCommittedAlone(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() != "sqlite" {
			return
		}
		fill(t, db)
		for name, full := range fulls {
			careless := func(tx *gorm.DB) error {
				ok(t, "before it", take(tx, 42))
				if err := full(tx); err == nil || !strings.Contains(err.Error(), "full") {
					t.Errorf("%s: %v, want that the disk is full", name, err)
				}
				_, _ = charge(tx)
				_ = take(tx.Session(&gorm.Session{NewDB: true}), 42)
				return nil
			}
			_, once := gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (int, error) { return 1, careless(tx) })
			errs := map[string]error{
				"Once":        once,
				"block":       db.Scopes(gormlock.Guard("k")).Transaction(careless),
				"Transaction": gormlock.Transaction(db, "k", careless),
				"savepoint": gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
					_ = tx.Transaction(careless)
					_, _ = charge(tx)
					return nil
				}),
			}
			for form, err := range errs {
				if err == nil || errors.Is(err, gormlock.ErrCommitUnknown) {
					t.Errorf("%s: %s: %v", name, form, err)
				}
			}
			if n := orders(t, db); n != 0 {
				t.Fatalf("%s: %d orders were written outside of the transaction", name, n)
			}
			wantIdle(t, db, l, "k")
		}
	})
}

// TestFull_OnceStoresAllOrNothing: where the key's row or the result does not fit in, nothing of the run is there, and the
// next one does it.
func TestFull_OnceStoresAllOrNothing(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() != "sqlite" {
			return
		}
		fill(t, db)
		note := large
		run := func(tx *gorm.DB) (receipt, error) {
			r, err := charge(tx)
			r.Note = note
			return r, err
		}
		refused := func(what, key string) {
			t.Helper()
			_, err := gormlock.Once(t.Context(), db, key, run)
			if err == nil || !strings.Contains(err.Error(), "full") || errors.Is(err, gormlock.ErrCommitUnknown) {
				t.Errorf("%s: %v, want that the disk is full", what, err)
			}
			wantIdle(t, db, l, key)
		}
		refused("the result", "k")
		if n := orders(t, db); n != 0 {
			t.Errorf("the result does not fit in, and there are %d orders", n)
		}
		note = ""
		done, err := 0, error(nil)
		for ; err == nil; done++ { // until there is no room for the row
			_, err = gormlock.Once(t.Context(), db, fmt.Sprintf("%0512d", done), run)
		}
		done--
		refused("the row", fmt.Sprintf("%0512d", done))
		if n := orders(t, db); n != int64(done) || done == 0 {
			t.Errorf("%d were done, and there are %d orders", done, n)
		}
		ok(t, "room", db.Raw("PRAGMA max_page_count = 100000").Row().Scan(new(int)))
		note = large
		for range 2 {
			got, err := gormlock.Once(t.Context(), db, "k", run)
			ok(t, "with room", err)
			if got.Note != large {
				t.Errorf("a result of %d bytes", len(got.Note))
			}
		}
		if n := orders(t, db); n != int64(done)+1 {
			t.Errorf("%d orders, want %d", n, done+1)
		}
	})
}

package gormlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"math"
	"testing"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// nothing is a database that does nothing: what is left is what the Go side of a write costs.
type nothing struct{}

func (n nothing) Connect(context.Context) (driver.Conn, error)                 { return n, nil }
func (n nothing) Driver() driver.Driver                                        { return nil }
func (n nothing) Prepare(string) (driver.Stmt, error)                          { return nil, driver.ErrSkip }
func (n nothing) Close() error                                                 { return nil }
func (n nothing) Begin() (driver.Tx, error)                                    { return n, nil }
func (n nothing) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return n, nil }
func (n nothing) Commit() error                                                { return nil }
func (n nothing) Rollback() error                                              { return nil }

func (n nothing) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), nil
}

func (n nothing) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return noRows{}, nil
}

type noRows struct{}

func (noRows) Columns() []string         { return []string{"sku"} }
func (noRows) Close() error              { return nil }
func (noRows) Next([]driver.Value) error { return io.EOF }

func openNothing(t testing.TB, with bool) *gorm.DB {
	conns := sql.OpenDB(nothing{})
	t.Cleanup(func() { _ = conns.Close() })
	db, err := gorm.Open(mysql.New(mysql.Config{Conn: conns, SkipInitializeWithVersion: true}), &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	if with {
		l, err := core.New(backendtest.Memory())
		ok(t, "core.New", err)
		t.Cleanup(func() { _ = l.Close() })
		ok(t, "Use", db.Use(gormlock.New(l)))
	}
	return db
}

// unguarded is what runs without a guard, and how many transactions it begins.
var unguarded = map[string]struct {
	run          func(db *gorm.DB) error
	transactions float64
}{
	"find":   {func(db *gorm.DB) error { return db.Find(&Stock{}, "sku = ?", 42).Error }, 0},
	"rows":   {rowsOfNothing, 0},
	"exec":   {func(db *gorm.DB) error { return db.Exec("UPDATE stocks SET name = ?", "a").Error }, 0},
	"delete": {func(db *gorm.DB) error { return db.Delete(&Stock{}, "sku = ?", 42).Error }, 1},
	"update": {updateNothing, 1},
	"update without a transaction": {func(db *gorm.DB) error {
		return updateNothing(db.Session(&gorm.Session{SkipDefaultTransaction: true}))
	}, 0},
	"transaction of two": {func(db *gorm.DB) error { return db.Transaction(twoUpdates) }, 1},
}

func rowsOfNothing(db *gorm.DB) error {
	rows, err := db.Model(&Stock{}).Where("sku = ?", 42).Rows()
	if err != nil {
		return err
	}
	return rows.Close()
}

func twoUpdates(tx *gorm.DB) error {
	if err := updateNothing(tx); err != nil {
		return err
	}
	return updateNothing(tx)
}

func updateNothing(db *gorm.DB) error {
	return db.Model(&Stock{}).Where("sku = ?", 42).UpdateColumn("left", gorm.Expr("left - 1")).Error
}

// TestUnguarded_Allocations allows the plugin one small object for each transaction.
func TestUnguarded_Allocations(t *testing.T) {
	with, without := openNothing(t, true), openNothing(t, false)
	for name, form := range unguarded {
		count := func(db *gorm.DB) float64 {
			least := math.Inf(1)
			for range 10 { // whatever else runs, and the race detector, allocates too
				least = min(least, testing.AllocsPerRun(100, func() { ok(t, name, form.run(db)) }))
			}
			return least
		}
		if a, b := count(with), count(without); a > b+form.transactions {
			t.Errorf("%s: %v allocations with the plugin, %v without it, want at most %v more",
				name, a, b, form.transactions)
		}
	}
}

// BenchmarkWrites is what GORM and the plugin cost on a database that does nothing.
func BenchmarkWrites(b *testing.B) {
	for name, write := range map[string]func(db *gorm.DB) error{
		"update":         updateNothing,
		"guarded update": func(db *gorm.DB) error { return updateNothing(db.Scopes(gormlock.Guard("k"))) },
		"block":          func(db *gorm.DB) error { return db.Transaction(twoUpdates) },
		"guarded block":  func(db *gorm.DB) error { return gormlock.Transaction(db, "k", twoUpdates) },
		"guarded nested": func(db *gorm.DB) error { return gormlock.Transaction(db, "k", nestedUpdates) },
	} {
		b.Run(name, func(b *testing.B) {
			db := openNothing(b, true)
			b.ReportAllocs()
			for b.Loop() {
				ok(b, name, write(db))
			}
		})
	}
}

func nestedUpdates(tx *gorm.DB) error {
	return gormlock.Transaction(tx, "k", twoUpdates)
}

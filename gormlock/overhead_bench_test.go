package gormlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"math"
	"runtime"
	"testing"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/check"
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

// unguarded is what runs without a guard, and what it may allocate more than in plain GORM.
var unguarded = map[string]struct {
	run          func(db *gorm.DB) error
	bytes, times float64
}{
	"find":   {run: func(db *gorm.DB) error { return db.Find(&Stock{}, "sku = ?", 42).Error }},
	"rows":   {run: rowsOfNothing},
	"exec":   {run: func(db *gorm.DB) error { return db.Exec("UPDATE stocks SET name = ?", "a").Error }},
	"delete": {run: func(db *gorm.DB) error { return db.Delete(&Stock{}, "sku = ?", 42).Error }, bytes: -1024, times: -4},
	"update": {run: updateNothing, bytes: -1024, times: -4},
	"update without a transaction": {run: func(db *gorm.DB) error {
		return updateNothing(db.Session(&gorm.Session{SkipDefaultTransaction: true}))
	}},
	"transaction of two": {run: func(db *gorm.DB) error { return db.Transaction(twoUpdates) }, bytes: -2048, times: -8},
	"transaction of one read": {run: func(db *gorm.DB) error {
		return db.Transaction(func(tx *gorm.DB) error { return tx.Find(&Stock{}, "sku = ?", 42).Error })
	}, bytes: 208, times: 2}, // the transaction, and the rows that MySQL may end it in
	"empty transaction": {run: func(db *gorm.DB) error {
		return db.Transaction(func(tx *gorm.DB) error { return nil })
	}, bytes: 192, times: 1}, // minus BEGIN
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

// TestCosts_Unguarded: a read allocates nothing more than without the plugin, and a transaction one
// small object. A write allocates less, because GORM does not copy its statement to begin.
func TestCosts_Unguarded(t *testing.T) {
	with, without := openNothing(t, true), openNothing(t, false)
	for name, form := range unguarded {
		run := func(db *gorm.DB) func() { return func() { ok(t, name, form.run(db)) } }
		bytes, times := allocated(run(with))
		plainBytes, plainTimes := allocated(run(without))
		t.Logf("%s: %+.0f bytes, %+.0f allocations, beside %.0f and %.0f", name, bytes-plainBytes, times-plainTimes, plainBytes, plainTimes)
		if times > plainTimes+form.times || !check.Race && bytes > plainBytes+form.bytes+16 {
			t.Errorf("%s: %v bytes in %v allocations with the plugin, %v in %v without it, want at most %v in %v more",
				name, bytes, times, plainBytes, plainTimes, form.bytes, form.times)
		}
	}
}

// allocated returns what fn allocates, at least: whatever else runs, and the race detector, allocates
// too.
func allocated(fn func()) (bytes, times float64) {
	const rounds, runs = 20, 50
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	bytes, times = math.Inf(1), math.Inf(1)
	for range rounds {
		var began, ended runtime.MemStats
		runtime.ReadMemStats(&began)
		for range runs {
			fn()
		}
		runtime.ReadMemStats(&ended)
		bytes = min(bytes, float64(ended.TotalAlloc-began.TotalAlloc)/runs)
		times = min(times, float64((ended.Mallocs-began.Mallocs)/runs))
	}
	return bytes, times
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

package gormlock_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/plugin/dbresolver"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestErrNotRegistered(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		guard := gormlock.Guard("k")
		want(t, "single", take(db.Scopes(guard), 42), gormlock.ErrNotRegistered)
		want(t, "block", db.Scopes(guard).Transaction(func(tx *gorm.DB) error { return take(tx, 42) }), gormlock.ErrNotRegistered)
		err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return take(tx, 42) })
		want(t, "Transaction", err, gormlock.ErrNotRegistered)
		if !strings.Contains(err.Error(), `"k"`) || !strings.Contains(err.Error(), "db.Use(gormlock.New(") {
			t.Errorf("%v: it must name the key and say what to do", err)
		}
		wantLeft(t, db, 42, 10)
	})
}

func TestErrNoTransaction(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		session := db.Scopes(gormlock.Guard("k")).Session(&gorm.Session{})
		var n int64
		_, rowsErr := session.Model(&Stock{}).Rows()
		reads := map[string]error{
			"First":         session.First(&Stock{}).Error,
			"Find":          session.Find(&[]Stock{}).Error,
			"Count":         session.Model(&Stock{}).Count(&n).Error,
			"Pluck":         session.Model(&Stock{}).Pluck("sku", &[]int{}).Error,
			"Raw and Scan":  session.Raw("SELECT 1").Scan(&n).Error,
			"Rows":          rowsErr,
			"Row":           session.Model(&Stock{}).Select("sku").Row().Scan(&n),
			"FirstOrCreate": session.FirstOrCreate(&Stock{}, Stock{SKU: 43}).Error,
			"context, Raw":  db.WithContext(gormlock.WithGuard(t.Context(), "k")).Raw("SELECT 1").Scan(&n).Error,
		}
		for name, err := range reads {
			want(t, name, err, gormlock.ErrNoTransaction)
		}
		_, err := gormlock.SQLTx(db)
		want(t, "SQLTx", err, gormlock.ErrNoTransaction)
		wantIdle(t, db, l, "k")
	})
}

func TestErrUnmanagedTransaction(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		before := db.Session(&gorm.Session{PrepareStmt: true}) // has the pool that was there before Use
		plain, err := pool(t, db).BeginTx(t.Context(), nil)
		ok(t, "BeginTx", err)
		onTx := db.Session(&gorm.Session{NewDB: true, Context: t.Context()})
		onTx.Config.ConnPool, onTx.Statement.ConnPool, onTx.Config.Plugins = plain, plain, map[string]gorm.Plugin{}
		want(t, "Use on a transaction", onTx.Use(gormlock.New(nil)), gormlock.ErrUnmanagedTransaction)
		statements := gorm.NewPreparedStmtDB(plain, 8, time.Minute)
		onTx.Config.ConnPool, onTx.Statement.ConnPool = statements, statements
		want(t, "Use on a prepared transaction", onTx.Use(gormlock.New(nil)), gormlock.ErrUnmanagedTransaction)
		var one int
		ok(t, "it goes on without the plugin", onTx.Raw("SELECT 1").Scan(&one).Error)
		statements.Close()
		ok(t, "Rollback", plain.Rollback())

		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		guard := gormlock.Guard("k")
		if _, prepared := db.ConnPool.(*gorm.PreparedStmtDB); !prepared {
			tx := before.Begin()
			want(t, "statement", take(tx.Scopes(guard), 42), gormlock.ErrUnmanagedTransaction)
			want(t, "Transaction", gormlock.Transaction(tx, "k", func(*gorm.DB) error { return nil }), gormlock.ErrUnmanagedTransaction)
			ok(t, "Rollback", tx.Rollback().Error)
		}
		ok(t, "single", take(before.Scopes(guard), 42))
		ok(t, "Transaction", gormlock.Transaction(before, "k", func(tx *gorm.DB) error { return take(tx, 42) }))
		want(t, "Connection", db.Connection(func(tx *gorm.DB) error {
			return tx.Scopes(guard).Transaction(func(tx *gorm.DB) error { return take(tx, 42) })
		}), gormlock.ErrUnmanagedTransaction)
		wantLeft(t, db, 42, 8)
		wantIdle(t, db, l, "k")
	})
}

func TestErrUnguarded(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		ok(t, "AutoMigrate", db.AutoMigrate(&Shelf{}))
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l, nil, gormlock.Protect(&Stock{}))))
		dropped := func(tx *gorm.DB) error { return take(tx.Session(&gorm.Session{NewDB: true}), 42) }
		_, generics := gorm.G[Stock](db).Where("sku = ?", 42).Update(t.Context(), "name", "new")
		other, err := gorm.Open(db.Dialector, config(func(c *gorm.Config) { c.PrepareStmt, c.Logger = db.PrepareStmt, db.Logger }))
		ok(t, "Open", err)
		ok(t, "Use", other.Use(db.Plugins["gormlock"]))
		var s Stock
		ok(t, "Take", db.Take(&s, "sku = 42").Error)
		writes := map[string]error{
			"create":                        db.Create(&Stock{SKU: 1}).Error,
			"update":                        take(db, 42),
			"delete":                        db.Delete(&Stock{}, "sku = 42").Error,
			"generics":                      generics,
			"table":                         db.Table("stocks").Where("sku = 42").Update("name", "new").Error,
			"table in capitals":             db.Table("STOCKS").Where("sku = 42").Update("name", "new").Error,
			"table in quotes":               db.Table("`stocks`").Where("sku = 42").Update("name", "new").Error,
			"table with an alias":           db.Table("stocks AS s").Where("sku = 42").Update("name", "new").Error,
			"table as a clause":             db.Table("?", clause.Table{Name: "stocks"}).Where("sku = 42").Update("name", "new").Error,
			"table of a database":           db.Table("main.stocks").Where("sku = 42").Update("name", "new").Error,
			"table of a model of it":        db.Where("sku = 42").Model(&qualified{}).Update("name", "new").Error,
			"another table for its model":   db.Table("stocks_2026").Create(&Stock{SKU: 80}).Error,
			"table that is joined":          db.Table("items JOIN stocks ON stocks.id = items.stock_id").Where("sku = 42").Update("stocks.name", "new").Error,
			"block":                         db.Transaction(func(tx *gorm.DB) error { return take(tx, 42) }),
			"dropped":                       db.Scopes(gormlock.Guard("k")).Transaction(dropped),
			"another gorm.DB of the plugin": take(other, 42),
			"a connection":                  db.Connection(func(tx *gorm.DB) error { return take(tx, 42) }),
			"prepared session":              take(db.Session(&gorm.Session{PrepareStmt: true}), 42),
			"Save":                          db.Save(&s).Error,
			"FirstOrCreate":                 db.FirstOrCreate(&Stock{}, Stock{SKU: 77}).Error,
			"map":                           db.Model(&Stock{}).Create(map[string]any{"SKU": 7}).Error,
			"batches":                       db.CreateInBatches(&[]Stock{{SKU: 7}, {SKU: 8}}, 1).Error,
			"an association":                db.Create(&Shelf{Stocks: []Stock{{SKU: 78}}}).Error,
			"generics in a dropped block": db.Scopes(gormlock.Guard("k")).Transaction(func(tx *gorm.DB) error {
				return gorm.G[Stock](tx).Create(t.Context(), &Stock{SKU: 79})
			}),
		}
		for name, err := range writes {
			want(t, name, err, gormlock.ErrUnguarded)
		}
		ok(t, "guarded", take(db.Scopes(gormlock.Guard("k")), 42))
		ok(t, "guarded, dropped later", gormlock.Transaction(db, "k", dropped))
		ok(t, "read", db.First(&Stock{}).Error)
		ok(t, "another table", db.Create(&Item{StockID: 1}).Error)
		wantLeft(t, db, 42, 8)
	})
}

type qualified struct{ Name string }

func (qualified) TableName() string { return "main.public.Stocks" }

// Shelf has stocks, by way of a table between them.
type Shelf struct {
	ID     uint
	Stocks []Stock `gorm:"many2many:shelf_stocks"`
}

func TestProtect_BadModel(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if err := db.Use(gormlock.New(nil, gormlock.Protect(42))); err == nil || !strings.Contains(err.Error(), "Protect(int)") {
			t.Errorf("Use: %v", err)
		}
	})
}

func TestUse_RefusesDBResolverBefore(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Use", db.Use(dbresolver.Register(dbresolver.Config{})))
		if err := db.Use(gormlock.New(nil)); err == nil || !strings.Contains(err.Error(), "before it") {
			t.Errorf("Use after dbresolver: %v", err)
		}
		if _, wrapped := db.ConnPool.(*sql.DB); !wrapped {
			t.Errorf("the pool was replaced by a %T", db.ConnPool)
		}
	})
}

func TestDryRun_IsRefused(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		dry := db.Session(&gorm.Session{DryRun: true})
		want(t, "single", take(dry.Scopes(gormlock.Guard("k")), 42), gorm.ErrDryRunModeUnsupported)
		want(t, "block", dry.Scopes(gormlock.Guard("k")).Transaction(func(tx *gorm.DB) error { return take(tx, 42) }), gorm.ErrDryRunModeUnsupported)
		want(t, "Decrement", decrement(dry.Model(&Stock{}).Where("sku = 42"), "left", 1), gorm.ErrDryRunModeUnsupported)
		ok(t, "unguarded", take(dry, 42))
		wantIdle(t, db, l, "k")
	})
}

// A list of keys that turned out empty is no leave to go on without a lock.
func TestWithGuard_WithoutKeys(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		var keys []string
		for name, ctx := range map[string]context.Context{
			"none":            gormlock.WithGuard(t.Context(), keys...),
			"none beside one": gormlock.WithGuard(gormlock.WithGuard(t.Context(), "k"), keys...),
		} {
			want(t, name+", single", take(db.WithContext(ctx), 42), core.ErrInvalidKey)
			want(t, name+", block", db.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return take(tx, 42) }), core.ErrInvalidKey)
		}
		wantLeft(t, db, 42, 10)
		wantIdle(t, db, l, "k")
	})
}

func TestErrTaken(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		short := gormlock.WithWait(10 * time.Millisecond)
		called := false
		fn := func(tx *gorm.DB) error { called = true; return take(tx, 42) }
		want(t, "single", take(db.Scopes(gormlock.Guard("k", short)), 42), core.ErrTaken)
		want(t, "Transaction", gormlock.Transaction(db, "k", fn, short, nil), core.ErrTaken)
		err = endsInLine(t, func(ctx context.Context) error {
			return db.WithContext(gormlock.WithGuard(ctx, "k")).Transaction(fn)
		})
		want(t, "WithGuard", err, core.ErrTaken)
		want(t, "WithGuard", err, context.DeadlineExceeded)
		if called {
			t.Error("the function ran without the lock")
		}
		hasty := db.Session(&gorm.Session{})
		hasty.DefaultTransactionTimeout = 10 * time.Millisecond
		want(t, "single, with the time of a transaction", take(hasty.Scopes(gormlock.Guard("k")), 42), context.DeadlineExceeded)
		ok(t, "Seal", k.Seal(t.Context(), []byte("out"), time.Minute))
		want(t, "sealed", take(db.Scopes(gormlock.Guard("k")), 42), core.ErrSealed)
		want(t, "bad key", take(db.Scopes(gormlock.Guard("")), 42), core.ErrInvalidKey)
		wantLeft(t, db, 42, 10)
	})
}

// TestLocker_Default is not parallel, as it sets the default of the process.
func TestLocker_Default(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		ok(t, "Use", db.Use(gormlock.New(nil)))
		core.SetDefault(nil)
		err := take(db.Scopes(gormlock.Guard("k")), 42)
		if err == nil || !strings.Contains(err.Error(), "core.SetDefault") {
			t.Errorf("without a Locker: %v", err)
		}
		core.SetDefault(locker(t, backendtest.Memory()))
		defer core.SetDefault(nil)
		ok(t, "with a default", take(db.Scopes(gormlock.Guard("k")), 42))
		for _, d := range []time.Duration{0, -time.Second} {
			if err := take(db.Scopes(gormlock.Guard("k", gormlock.WithWait(d))), 42); err == nil || !strings.Contains(err.Error(), "must be positive") {
				t.Errorf("WithWait(%v): %v", d, err)
			}
			if err := gormlock.Transaction(db, "k", nil, gormlock.WithWait(d)); err == nil || !strings.Contains(err.Error(), "must be positive") {
				t.Errorf("WithWait(%v): %v", d, err)
			}
		}
		wantLeft(t, db, 42, 9)
	})
}

// TestProtect_TableOfAClause: a clause may name the table.
func TestProtect_TableOfAClause(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()), gormlock.Protect(&Stock{}))))
		ok(t, "Exec", db.Exec("INSERT INTO stocks (sku, name) VALUES (42, 'a')").Error)
		table := clause.Table{Name: "stocks"}
		for name, err := range map[string]error{
			"update": db.Table("items").Clauses(clause.Update{Table: table}).Where("sku = 42").Update("name", "b").Error,
			"insert": db.Table("items").Clauses(clause.Insert{Table: table}).Create(map[string]any{"sku": 43, "name": "c"}).Error,
			"delete": db.Table("items").Clauses(clause.From{Tables: []clause.Table{table}}).Where("sku = 42").Delete(nil).Error,
		} {
			want(t, name, err, gormlock.ErrUnguarded)
		}
		var all []Stock
		ok(t, "Find", db.Find(&all).Error)
		if len(all) != 1 || all[0].Name != "a" {
			t.Errorf("%+v", all)
		}
	})
}

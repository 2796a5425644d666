package gormlock_test

import (
	"database/sql"
	"os"
	"sync"
	"testing"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// otherModes are ways to open a database that change what drivers send, count and isolate.
var otherModes = map[string]map[string]func(my *gomysql.Config, pg *pgx.ConnConfig){
	"mysql": {
		"found rows, interpolated": func(my *gomysql.Config, _ *pgx.ConnConfig) { my.ClientFoundRows, my.InterpolateParams = true, true },
		"serializable": func(my *gomysql.Config, _ *pgx.ConnConfig) {
			my.Params = map[string]string{"transaction_isolation": "'SERIALIZABLE'", "sql_mode": "''", "time_zone": "'+05:30'"}
		},
		"read committed": func(my *gomysql.Config, _ *pgx.ConnConfig) {
			my.Params = map[string]string{"transaction_isolation": "'READ-COMMITTED'", "sql_mode": "'ANSI'"}
		},
	},
	"postgres": {
		"simple protocol": func(_ *gomysql.Config, pg *pgx.ConnConfig) { pg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol },
		"serializable": func(_ *gomysql.Config, pg *pgx.ConnConfig) {
			pg.RuntimeParams = map[string]string{"default_transaction_isolation": "serializable", "timezone": "Asia/Kolkata"}
		},
		"repeatable read": func(_ *gomysql.Config, pg *pgx.ConnConfig) {
			pg.RuntimeParams = map[string]string{"default_transaction_isolation": "repeatable read"}
		},
	},
}

func openMode(t *testing.T, db *gorm.DB, change func(*gomysql.Config, *pgx.ConnConfig)) *gorm.DB {
	t.Helper()
	name := db.Migrator().CurrentDatabase()
	var dialector gorm.Dialector
	var conns *sql.DB
	if db.Name() == "mysql" {
		cfg, err := gomysql.ParseDSN(os.Getenv("ONELANE_MYSQL_DSN"))
		ok(t, "ParseDSN", err)
		cfg.DBName, cfg.ParseTime = name, true
		change(cfg, nil)
		cfg.Params = settings(t, db, cfg.Params)
		connector, err := gomysql.NewConnector(cfg)
		ok(t, "NewConnector", err)
		conns = sql.OpenDB(connector)
		dialector = mysql.New(mysql.Config{Conn: conns})
	} else {
		cfg, err := pgx.ParseConfig(os.Getenv("ONELANE_POSTGRES_DSN"))
		ok(t, "ParseConfig", err)
		cfg.Database = name
		change(nil, cfg)
		conns = stdlib.OpenDB(*cfg)
		dialector = postgres.New(postgres.Config{Conn: conns})
	}
	t.Cleanup(func() { _ = conns.Close() })
	opened, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	return opened
}

// TestOtherModes: fences and Once hold whatever the driver counts as affected, and however
// it sends arguments. They hold whatever the default isolation, SQL mode and time zone are.
func TestOtherModes(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, plain *gorm.DB) {
		for name, change := range otherModes[plain.Name()] {
			db := openMode(t, plain, change)
			t.Run(name, func(t *testing.T) {
				ok(t, "Migrate", gormlock.Migrate(db))
				ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
				ok(t, "Exec", db.Exec("DELETE FROM onelane_fences").Error)
				ok(t, "Exec", db.Exec("DELETE FROM items").Error)
				ok(t, "Exec", db.Exec("DELETE FROM stocks").Error)
				ok(t, "Exec", db.Exec("DELETE FROM onelane_once").Error)
				stock := Stock{SKU: 42, Left: 10}
				ok(t, "Create", db.Create(&stock).Error)

				fenced := func(token uint64) error {
					return take(holder(t, db, token, gormlock.Fenced()).Scopes(gormlock.Guard("k")), 42)
				}
				ok(t, "the first token", fenced(5))
				want(t, "the same", fenced(5), gormlock.ErrFenced)
				want(t, "an older one", fenced(4), gormlock.ErrFenced)
				ok(t, "a newer one", fenced(6))
				wantLeft(t, db, 42, 8)

				var all sync.WaitGroup
				for i := range 8 {
					p := holder(t, db, uint64(i+1))
					all.Go(func() {
						r, err := gormlock.Once(t.Context(), p, "pay", func(tx *gorm.DB) (receipt, error) {
							item := Item{StockID: stock.ID, Name: "order"}
							err := tx.Create(&item).Error
							return receipt{Number: int64(item.ID)}, err
						})
						if err != nil || r.Number == 0 {
							t.Errorf("Once: %+v, %v", r, err)
						}
					})
				}
				all.Wait()
				if n := orders(t, db); n != 1 {
					t.Errorf("%d orders", n)
				}
				_, err := gormlock.Once(t.Context(), holder(t, db, 9, gormlock.Fenced()), "fenced", func(tx *gorm.DB) (int, error) { return 1, take(tx, 42) })
				ok(t, "Once with a fence", err)
				ok(t, "Transaction with a fence", gormlock.Transaction(holder(t, db, 10, gormlock.Fenced()), "k", func(tx *gorm.DB) error {
					return take(tx.Scopes(gormlock.Guard("k")), 42)
				}))
			})
		}
	})
}

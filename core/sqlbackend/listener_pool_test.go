package sqlbackend_test

import (
	"os"
	"testing"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestListener_SmallPool: two Lockers share two connections. Their listeners never have both.
func TestListener_SmallPool(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, db *database) {
		small := db.reopen(t, func(*gomysql.Config, *pgx.ConnConfig) {})
		small.SetMaxOpenConns(2)
		first := backendtest.Open(t, at(small.DB))
		watched(t, backend{Sealer: first.(core.Sealer)}, "k")
		second := open(t, at(small.DB))
		changed, _, err := second.Watch(t.Context(), "k")
		if ok(t, "Watch", err); changed != nil {
			t.Error("the second listener has the last connection")
		}
		ok(t, "Close", first.Close())
		watched(t, second, "k") // now there is room
	})
}

// TestListener_PoolBelow: a pool of pgx below database/sql does not get a connection back that listens.
func TestListener_PoolBelow(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, db *database) {
		cfg, err := pgxpool.ParseConfig(os.Getenv("ONELANE_POSTGRES_DSN"))
		ok(t, "ParseConfig", err)
		cfg.ConnConfig.Database = query[string](t, db, "SELECT current_database()")
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		ok(t, "NewWithConfig", err)
		defer pool.Close()
		over := stdlib.OpenDBFromPool(pool)
		defer over.Close()
		b := backendtest.Open(t, at(over))
		watched(t, backend{Sealer: b.(core.Sealer)}, "k")
		ok(t, "Close", b.Close())
		for _, c := range pool.AcquireAllIdle(t.Context()) {
			var n int
			ok(t, "pg_listening_channels", c.QueryRow(t.Context(), "SELECT COUNT(*) FROM pg_listening_channels()").Scan(&n))
			if c.Release(); n != 0 {
				t.Error("a connection of the pool still listens")
			}
		}
	})
}

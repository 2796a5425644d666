package sqlbackend_test

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

var ok, want, eventually, locker = check.OK, check.Want, check.Eventually, check.Locker

func TestMain(m *testing.M) {
	check.Parallel(5)
	_ = gomysql.SetLogger(&gomysql.NopLogger{}) // it reports faults that tests make
	check.Main(m)
}

// database is an empty database that a test has alone.
type database struct {
	*sql.DB
	name string // "sqlite", "mysql" or "postgres"
}

// databases runs fn on each kind of database.
func databases(t *testing.T, fn func(t *testing.T, db *database)) {
	t.Helper()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		conns, err := db.DB()
		ok(t, "DB", err)
		fn(t, &database{conns, db.Name()})
	})
}

func (d *database) migrate(t testing.TB) {
	t.Helper()
	ok(t, "Migrate", sqlbackend.Migrate(t.Context(), d.DB))
}

// exec runs a statement whose arguments are written as ?.
func (d *database) exec(t testing.TB, query string, args ...any) {
	t.Helper()
	for i := 1; d.name == "postgres" && strings.Contains(query, "?"); i++ {
		query = strings.Replace(query, "?", "$"+string(rune('0'+i)), 1)
	}
	_, err := d.ExecContext(t.Context(), query, args...)
	ok(t, query, err)
}

// query returns the only value of a row.
func query[T any](t testing.TB, d *database, query string) (value T) {
	t.Helper()
	ok(t, query, d.QueryRowContext(t.Context(), query).Scan(&value))
	return value
}

// reopen opens the database of a server again, in another way.
func (d *database) reopen(t *testing.T, change func(*gomysql.Config, *pgx.ConnConfig)) *database {
	t.Helper()
	again := &database{name: d.name}
	if d.name == "mysql" {
		cfg, err := gomysql.ParseDSN(os.Getenv("ONELANE_MYSQL_DSN"))
		ok(t, "ParseDSN", err)
		cfg.DBName = query[string](t, d, "SELECT DATABASE()")
		change(cfg, nil)
		connector, err := gomysql.NewConnector(cfg)
		ok(t, "NewConnector", err)
		again.DB = sql.OpenDB(connector)
	} else {
		cfg, err := pgx.ParseConfig(os.Getenv("ONELANE_POSTGRES_DSN"))
		ok(t, "ParseConfig", err)
		cfg.Database = query[string](t, d, "SELECT current_database()")
		change(nil, cfg)
		again.DB = stdlib.OpenDB(*cfg)
	}
	again.SetMaxIdleConns(16) // a new connection costs PostgreSQL a process
	t.Cleanup(func() { _ = again.Close() })
	return again
}

// beside makes a second database on the server of db: a replica that nobody replicates to.
func (d *database) beside(t *testing.T, name string) *database {
	t.Helper()
	if d.name == "postgres" { // a schema is enough
		d.exec(t, "CREATE SCHEMA "+name)
		return d.reopen(t, func(_ *gomysql.Config, pg *pgx.ConnConfig) { pg.RuntimeParams["search_path"] = name })
	}
	full := query[string](t, d, "SELECT DATABASE()") + "_" + name
	d.exec(t, "CREATE DATABASE "+full)
	t.Cleanup(func() {
		if _, err := d.Exec("DROP DATABASE " + full); err != nil {
			t.Errorf("DROP DATABASE: %v", err)
		}
	})
	return d.reopen(t, func(my *gomysql.Config, _ *pgx.ConnConfig) { my.DBName = full })
}

// sqliteFile opens a database in a new file.
func sqliteFile(t testing.TB) *sql.DB {
	t.Helper()
	path := url.URL{Path: filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))}
	db, err := sql.Open(sqlite.DriverName, "file:"+path.EscapedPath())
	ok(t, "Open", err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// at returns the backend on a database. It is patient with a busy machine.
func at(db *sql.DB, opts ...sqlbackend.Option) core.Opener {
	return sqlbackend.New(db, append([]sqlbackend.Option{sqlbackend.WithTimeout(time.Minute)}, opts...)...)
}

// backend is an open backend. It is an Opener of its own kind, too.
type backend struct {
	core.Sealer
	core.Opener
}

func open(t testing.TB, o core.Opener) backend {
	t.Helper()
	return backend{backendtest.Open(t, o).(core.Sealer), o}
}

func (b backend) release(ctx context.Context, g core.Grant) error {
	_, err := b.Release(ctx, g)
	return err
}

func request(key, owner string, ttl time.Duration) core.Request {
	return core.Request{Key: key, Owner: owner, TTL: ttl, Token: true}
}

func tokenOf(t testing.TB, k *core.Lock) uint64 {
	t.Helper()
	token, err := k.Token(t.Context())
	ok(t, "Token", err)
	return token
}

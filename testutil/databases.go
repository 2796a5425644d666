package testutil

import (
	"database/sql"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/glebarez/sqlite"
	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/testutil/internal/server"
)

// Databases runs fn as the subtests "sqlite", "mysql" and "postgres", each with an empty database
// that no other test uses at the same time. When the tests that use a database on a server have
// ended, it is dropped. MariaDB and PostgreSQL take part if ONELANE_MYSQL_DSN and
// ONELANE_POSTGRES_DSN name one (testutil/servers sets them). A missing server is logged. If CI or
// ONELANE_REQUIRE_SERVERS is set, it fails the test instead. The opts go to gorm.Open, for example
// &gorm.Config{PrepareStmt: true}. Without a Logger among them GORM is silent.
//
//	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
//		if err := gormlock.Migrate(db); err != nil {
//			t.Fatal(err)
//		}
//	})
func Databases(t *testing.T, fn func(t *testing.T, db *gorm.DB), opts ...gorm.Option) {
	t.Helper()
	postgresDatabases.use(t)
	for _, d := range []struct {
		name, env, instead string
		open               func(t *testing.T, dsn string) gorm.Dialector
	}{
		{name: "sqlite", open: openSQLite},
		{name: "mysql", env: server.EnvMySQL, open: openMySQL, instead: "these tests run without MariaDB"},
		{name: "postgres", env: server.EnvPostgres, open: openPostgres, instead: "these tests run without PostgreSQL"},
	} {
		t.Run(d.name, func(t *testing.T) {
			dsn := os.Getenv(d.env)
			if d.env != "" && dsn == "" {
				err := fmt.Errorf("%s is not set", d.env)
				if server.Required() {
					t.Fatalf("testutil: %v: set it to the DSN of a server on which databases may be created; %s", err, server.Advice)
				}
				missing(t, d.name, d.instead, err)
				return
			}
			fn(t, openGORM(t, d.open(t, dsn), opts))
		})
	}
}

func openGORM(t *testing.T, d gorm.Dialector, opts []gorm.Option) *gorm.DB {
	t.Helper()
	own := []gorm.Option{silent{}} // GORM applies a *gorm.Config before other options
	for _, o := range opts {
		if c, ok := o.(*gorm.Config); ok { // a copy for each database: it holds the plugins
			config := *c
			config.Plugins = maps.Clone(c.Plugins)
			o = &config
		}
		own = append(own, o)
	}
	db, err := gorm.Open(d, own...)
	if err != nil {
		t.Fatalf("testutil: %v", err)
	}
	return db
}

type silent struct{}

func (silent) AfterInitialize(*gorm.DB) error { return nil }

func (silent) Apply(c *gorm.Config) error {
	if c.Logger == nil {
		c.Logger = logger.Discard
	}
	return nil
}

// In openSQLite a transaction takes the write lock when it begins: a read lock could not be turned
// into one while others write.
func openSQLite(t *testing.T, _ string) gorm.Dialector {
	t.Helper()
	// The folder is named after the test, and "#" would end the path.
	path := url.URL{Path: filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))}
	db, err := sql.Open(sqlite.DriverName, "file:"+path.EscapedPath()+
		"?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate")
	if err != nil {
		t.Fatalf("testutil: %v", err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &sqlite.Dialector{Conn: db}
}

func openMySQL(t *testing.T, dsn string) gorm.Dialector {
	t.Helper()
	cfg, err := gomysql.ParseDSN(dsn)
	if err != nil {
		t.Fatalf("testutil: %s: %v", server.EnvMySQL, err)
	}
	cfg.ParseTime = true
	return mysql.New(mysql.Config{Conn: mysqlDatabases.database(t, func(database string) (*sql.DB, error) {
		cfg := cfg.Clone()
		if database != "" {
			cfg.DBName = database
		}
		connector, err := gomysql.NewConnector(cfg)
		if err != nil {
			return nil, err
		}
		return sql.OpenDB(connector), nil
	})})
}

func openPostgres(t *testing.T, dsn string) gorm.Dialector {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("testutil: %s: %v", server.EnvPostgres, err)
	}
	return postgres.New(postgres.Config{Conn: postgresDatabases.database(t, func(database string) (*sql.DB, error) {
		cfg := cfg.Copy()
		if database != "" {
			cfg.Database = database
		}
		return stdlib.OpenDB(*cfg), nil
	})})
}

package main

import (
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/testutil"
)

// sqlURL returns what -sql takes for the database of a test.
func sqlURL(t *testing.T, kind string, conns *sql.DB) string {
	t.Helper()
	text := func(query string) (value string) {
		must[any](t)(nil, conns.QueryRowContext(t.Context(), query).Scan(&value))
		return value
	}
	switch kind {
	case "mysql":
		c := must[*mysql.Config](t)(mysql.ParseDSN(os.Getenv("ONELANE_MYSQL_DSN")))
		return fmt.Sprintf("mysql://%s@%s/%s", url.UserPassword(c.User, c.Passwd), c.Addr, text("SELECT DATABASE()"))
	case "postgres":
		c := must[*pgx.ConnConfig](t)(pgx.ParseConfig(os.Getenv("ONELANE_POSTGRES_DSN")))
		return fmt.Sprintf("postgres://%s@%s:%d/%s?sslmode=disable", url.UserPassword(c.User, c.Password), c.Host, c.Port, text("SELECT current_database()"))
	}
	return "sqlite:" + (&url.URL{Path: text("SELECT file FROM pragma_database_list WHERE name = 'main'")}).EscapedPath()
}

func TestCommands_SQL(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		conns := must[*sql.DB](t)(db.DB())
		flags := []string{"-sql", sqlURL(t, db.Name(), conns)}
		_, errs := ctl(t, 2, append(flags, "ls")...)
		contains(t, errs, "onelane_locks") // nobody has made the table
		must[any](t)(nil, sqlbackend.Migrate(t.Context(), conns))
		opener := sqlbackend.New(conns, sqlbackend.WithTimeout(time.Minute))
		commands(t, opener, flags...)
		listsOddKeys(t, opener, flags...)
	})
}

func TestSQL_Errors(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"ls -sql oracle://x/y":                           `"oracle" is not postgres, mysql or sqlite`,
		"ls -sql :x":                                     "-sql",
		"ls -sql postgres://shop:secret@x:y/z":           "-sql",
		"ls -sql mysql://shop:secret@127.0.0.1:1/x":      "onelane_locks of mysql://shop:xxxxx@127.0.0.1:1/x",
		"inspect a -sql mysql://shop:secret@127.0.0.1:1": "127.0.0.1:1",
		"ls -sql sqlite:/no/such/file":                   "onelane_locks of sqlite:/no/such/file",
		"ls -sql sqlite:x -etcd y:1":                     "name one kind",
	} {
		_, errs := ctl(t, 2, strings.Fields(args+" -timeout 5s")...)
		if contains(t, errs, says); strings.Contains(errs, "secret") {
			t.Errorf("%s shows the password: %s", args, errs)
		}
	}
}

func TestSQL_PasswordFromTheEnvironment(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" { // the other servers of the tests ask for none
			return
		}
		conns := must[*sql.DB](t)(db.DB())
		must[any](t)(nil, sqlbackend.Migrate(t.Context(), conns))
		at := must[*url.URL](t)(url.Parse(sqlURL(t, db.Name(), conns)))
		user := "ctl" + at.Path[len(at.Path)-8:]
		must[any](t)(nil, db.Exec("CREATE USER "+user+" IDENTIFIED BY 'open sesame'").Error)
		defer db.Exec("DROP USER " + user)
		must[any](t)(nil, db.Exec("GRANT ALL ON "+at.Path[1:]+".* TO "+user).Error)
		at.User = url.User(user)
		_, errs := ctl(t, 2, "-sql", at.String(), "ls")
		contains(t, errs, "Access denied")
		t.Setenv(sqlPasswordEnv, "open sesame")
		ctl(t, 0, "-sql", at.String(), "ls")
	})
}

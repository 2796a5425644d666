package sqlbackend_test

import (
	"context"
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/glebarez/sqlite"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/sqlbackend"
)

// TestFirstQuestionTimesOut: that is an outage. It does not mean that the database is of another kind.
func TestFirstQuestionTimesOut(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, db *database) {
		db.exec(t, "CREATE SCHEMA fake")
		db.exec(t, "CREATE FUNCTION fake.version() RETURNS text AS 'SELECT pg_sleep(60); SELECT pg_catalog.version()' LANGUAGE sql")
		slow := db.with(t, map[string]string{"search_path": "fake, pg_catalog, public", "statement_timeout": "100"})
		_, err := open(t, at(slow.DB)).Acquire(t.Context(), request("k", "o/1", time.Minute))
		want(t, "Acquire", err, core.ErrUnavailable)
	})
}

// TestClockGoesBackInStatement: each question for the time gets an earlier answer. Tokens increase.
func TestClockGoesBackInStatement(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, db *database) {
		db.exec(t, "CREATE SCHEMA fake")
		db.exec(t, "CREATE SEQUENCE fake.calls")
		db.exec(t, "CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz AS "+
			"'SELECT pg_catalog.clock_timestamp() - nextval(''fake.calls'') * interval ''1 minute''' LANGUAGE sql")
		b := open(t, at(db.with(t, map[string]string{"search_path": "fake, pg_catalog, public"}).DB))
		var last uint64
		for range 3 {
			g, err := b.Acquire(t.Context(), request("k", "o/1", 10*time.Hour))
			if ok(t, "Acquire", err); g.Token <= last {
				t.Errorf("token %d after %d", g.Token, last)
			}
			last = g.Token + g.Tokens - 1
			ok(t, "Release", b.release(t.Context(), g))
		}
	})
}

// TestMigrate_BusySQLite: another process makes the same table.
func TestMigrate_BusySQLite(t *testing.T) {
	t.Parallel()
	path := url.URL{Path: filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))}
	db, err := sql.Open(sqlite.DriverName, "file:"+path.EscapedPath()+"?_pragma=busy_timeout(0)")
	ok(t, "Open", err)
	defer db.Close()
	other, err := db.Conn(t.Context())
	ok(t, "Conn", err)
	defer other.Close()
	_, err = other.ExecContext(t.Context(), "BEGIN EXCLUSIVE")
	ok(t, "BEGIN", err)
	time.AfterFunc(100*time.Millisecond, func() { _, _ = other.ExecContext(context.Background(), "COMMIT") })
	ok(t, "Migrate", sqlbackend.Migrate(t.Context(), db))
}

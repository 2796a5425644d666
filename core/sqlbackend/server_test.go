package sqlbackend_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/sqlbackend"
)

// otherServer is a database that calls itself something, and knows no function but version(). If it
// breaks, the connection that it is asked on next answers nothing.
type otherServer struct {
	version string
	breaks  atomic.Bool
}

func (s *otherServer) Driver() driver.Driver { return nil }
func (s *otherServer) Connect(context.Context) (driver.Conn, error) {
	return &otherConn{server: s}, nil
}

type otherConn struct {
	driver.Conn
	server *otherServer
	broken bool
}

func (c *otherConn) Close() error  { return nil }
func (c *otherConn) IsValid() bool { return !c.broken }

func (c *otherConn) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	if c.broken = c.broken || c.server.breaks.CompareAndSwap(true, false); c.broken {
		return nil, errors.New("the connection broke")
	}
	switch query {
	case "SELECT version()":
		return &oneRow{value: c.server.version}, nil
	case "SELECT 1":
		return &oneRow{value: int64(1)}, nil
	}
	return nil, errors.New("syntax error")
}

type oneRow struct {
	value any
	read  bool
}

func (r *oneRow) Columns() []string { return []string{"c"} }
func (r *oneRow) Close() error      { return nil }
func (r *oneRow) Next(dest []driver.Value) error {
	if r.read {
		return io.EOF
	}
	r.read, dest[0] = true, r.value
	return nil
}

// TestServer_Unknown: each call says that this database is not one of the four. It is no outage, so
// nobody tries again.
func TestServer_Unknown(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(&otherServer{version: "CockroachDB CCL v25.1.0"})
	defer db.Close()
	says := func(what string, err error) {
		t.Helper()
		if err == nil || errors.Is(err, core.ErrUnavailable) ||
			!strings.Contains(err.Error(), "not PostgreSQL, MySQL, MariaDB or SQLite") || !strings.Contains(err.Error(), "CockroachDB") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	_, err := locker(t, at(db)).Acquire(t.Context(), "k")
	says("Acquire", err)
	says("Migrate", sqlbackend.Migrate(t.Context(), db))
	_, err = sqlbackend.Purge(t.Context(), db, time.Hour)
	says("Purge", err)
}

// TestServer_BreaksWhenAsked: nothing is concluded from a connection that breaks.
func TestServer_BreaksWhenAsked(t *testing.T) {
	t.Parallel()
	s := &otherServer{version: "PostgreSQL 17.2 on x86_64-pc-linux-gnu"}
	s.breaks.Store(true)
	db := sql.OpenDB(s)
	defer db.Close()
	b := open(t, at(db))
	want(t, "Ping", b.Ping(t.Context()), core.ErrUnavailable)
	err := b.Ping(t.Context())
	if want(t, "Ping", err, core.ErrUnavailable); !strings.Contains(err.Error(), "which sqlbackend.Migrate makes") {
		t.Errorf("%v: it did not go on to read the table", err)
	}
}

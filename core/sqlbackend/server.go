package sqlbackend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/sqltable"
)

// server is what a database said of itself.
type server struct {
	sqltable.Dialect
	uncommitted bool // MySQL does not commit each statement
}

var (
	errUnknown    = errors.New("sqlbackend: this database is not PostgreSQL, MySQL, MariaDB or SQLite")
	errAutocommit = errors.New("autocommit is off on its connections, so that nobody else would see a lock; " +
		"take autocommit=0 out of the DSN or the server's settings, or give sqlbackend a *sql.DB of its own")
)

// ask finds out which database db leads to. The name of the driver would not do: wrappers for tracing
// hide it, and a driver of PostgreSQL also talks to databases that are none.
//
// All questions go to one connection: after one that broke, none is answered, and nothing is concluded.
func ask(ctx context.Context, db *sql.DB) (s server, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return s, err
	}
	defer conn.Close()
	var version string
	var on bool
	errs := make([]error, 3)
	one := func(i int, query string, answer any) bool {
		errs[i] = conn.QueryRowContext(ctx, query).Scan(answer)
		return errs[i] == nil
	}
	name := ""
	switch {
	case one(0, "SELECT version()", &version) && strings.HasPrefix(version, "PostgreSQL "):
		name = sqltable.Postgres
	case one(1, "SELECT @@autocommit", &on):
		name = sqltable.MySQL
		s.uncommitted = !on
	case one(2, "SELECT sqlite_version()", &version):
		name = sqltable.SQLite
	default:
		// If the server answers, it understood none of these.
		var n int
		if err := conn.QueryRowContext(ctx, "SELECT 1").Scan(&n); err != nil {
			return s, fmt.Errorf("asking which database this is: %w", err)
		}
		// A time-out of the server, for example, says nothing about its kind.
		if i := slices.IndexFunc(errs, sqlerr.Unavailable); i >= 0 {
			return s, fmt.Errorf("asking which database this is: %w", errs[i])
		}
		return s, fmt.Errorf("%w; it calls itself %q: %w", errUnknown, version, errors.Join(errs...))
	}
	s.Dialect, _ = sqltable.Of(name)
	return s, nil
}

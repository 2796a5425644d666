package gormlock

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"testing"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onelane/onelane/gormlock/testdata/sqlite3"
	"github.com/onelane/onelane/internal/sqltable"
)

func mysqlError(number uint16, state string) error {
	e := &gomysql.MySQLError{Number: number}
	copy(e.SQLState[:], state)
	return e
}

// TestJudge has the errors of statements, for each dialect.
func TestJudge(t *testing.T) {
	wrong := errors.New("of an application")
	for _, c := range []struct {
		dialect string
		err     error
		want    verdict
	}{
		{"mysql", mysqlError(1213, "40001"), verdictEnded},
		{"mysql", fmt.Errorf("wrapped: %w", mysqlError(1213, "40001")), verdictEnded},
		{"mysql", mysqlError(1213, ""), verdictEnded},
		{"mysql", mysqlError(1020, "HY000"), verdictEnded}, // changed since the snapshot, MariaDB
		{"mysql", mysqlError(1206, "HY000"), verdictEnded}, // the table of locks is full
		{"mysql", mysqlError(1180, "40000"), verdictEnded},
		{"mysql", mysqlError(1205, "HY000"), verdictTimeout},
		{"mysql", mysqlError(1062, "23000"), verdictOpen},
		{"mysql", mysqlError(1064, "42000"), verdictOpen},
		{"mysql", mysqlError(1264, "22003"), verdictOpen},
		{"mysql", mysqlError(1305, "42000"), verdictAsk}, // no such savepoint: it went with the transaction
		{"mysql", mysqlError(1105, "HY000"), verdictAsk}, // a proxy's
		{"mysql", mysqlError(1317, "70100"), verdictAsk}, // KILL QUERY
		{"mysql", mysqlError(1644, "45000"), verdictAsk}, // SIGNAL
		{"mysql", io.ErrUnexpectedEOF, verdictAsk},
		{"mysql", driver.ErrBadConn, verdictAsk},
		{"mysql", wrong, verdictAsk},
		{"mysql", context.Canceled, verdictOpen},
		{"mysql", fmt.Errorf("wrapped: %w", context.DeadlineExceeded), verdictOpen},

		{"postgres", &pgconn.PgError{Code: "40P01"}, verdictOpen},
		{"postgres", &pgconn.PgError{Code: "23505"}, verdictOpen},
		{"postgres", &pgconn.PgError{Code: "25P01"}, verdictEnded}, // no savepoint outside of a transaction
		{"postgres", io.ErrUnexpectedEOF, verdictOpen},
		{"postgres", wrong, verdictOpen},

		{"sqlite", sqlite3.Error{Code: 19}, verdictAsk},
		{"sqlite", sqlite3.Error{Code: 9}, verdictAsk}, // interrupted
		{"sqlite", context.Canceled, verdictAsk},       // a write that it interrupts
		{"sqlite", wrong, verdictAsk},
	} {
		if got := judge(sqltable.Dialect{Name: c.dialect}, c.err); got != c.want {
			t.Errorf("%s: %v: %d, want %d", c.dialect, c.err, got, c.want)
		}
	}
}

// TestCommitRejected has the errors of COMMIT. Only those with which a database rolls back are
// definite.
func TestCommitRejected(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&pgconn.PgError{Code: "23505"}, true},
		{&pgconn.PgError{Code: "40001"}, true},
		{&pgconn.PgError{Code: "P0001"}, true},
		{errors.New("commit unexpectedly resulted in rollback"), true},
		{errors.New("pq: could not complete operation in a failed transaction"), true},
		{&pgconn.PgError{Code: "40003"}, false}, // completion unknown
		{&pgconn.PgError{Code: "57P01"}, false},
		{&pgconn.PgError{Code: "08006"}, false},
		{mysqlError(1062, "23000"), true},
		{mysqlError(1213, "40001"), true},
		{mysqlError(3101, "40000"), true},
		{mysqlError(9007, "HY000"), true},
		{mysqlError(1205, "HY000"), false},
		{mysqlError(1317, "70100"), false},
		{mysqlError(1180, "HY000"), false},
		{sqlite3.Error{Code: 19}, false}, // unless its ROLLBACK succeeded
		{context.Canceled, false},
		{driver.ErrBadConn, false},
		{io.ErrUnexpectedEOF, false},
	} {
		if got := commitRejected(nil, c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
	if !commitRejected(&pinnedTx{undone: true}, sqlite3.Error{Code: 19}) {
		t.Error("a transaction of SQLite that was rolled back has no known outcome")
	}
	if commitRejected(&pinnedTx{}, sqlite3.Error{Code: 19}) {
		t.Error("a transaction of SQLite that nobody rolled back is called rejected")
	}
}

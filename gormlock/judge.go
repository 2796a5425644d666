package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/sqltable"
)

// gone reports whether err means that MySQL or MariaDB rolled the whole transaction back, so that
// the next statement would commit by itself. A lock wait that timed out is not here: see
// [transaction.ended].
func gone(err error) bool {
	return slices.Contains([]uint64{sqlerr.MySQLChangedRow, sqlerr.MySQLLockTableFull, sqlerr.MySQLDeadlock}, sqlerr.MySQLNumber(err)) ||
		strings.HasPrefix(sqlerr.MySQLState(err), "40")
}

// harmless reports whether the transaction is certainly as it was before the statement that
// returned err, or the database lets nothing more happen in it. PostgreSQL does so after any error,
// the others if they say that the statement was wrong.
func harmless(d sqltable.Dialect, err error) bool {
	if d.Name == "postgres" { // a wrapper for MySQL may have SQLState, too
		return sqlerr.PostgresState(err) != ""
	}
	if number := sqlerr.MySQLNumber(err); number != 0 {
		state := sqlerr.MySQLState(err)
		return number != sqlerr.MySQLNoSavepoint &&
			(strings.HasPrefix(state, "22") || strings.HasPrefix(state, "23") || strings.HasPrefix(state, "42"))
	}
	code, ok := sqlerr.SQLiteCode(err)
	return ok && (code&0xff == sqlerr.SQLiteConstraint || code == sqlerr.SQLiteError)
}

// localErrors are frequent errors that no server returned, or only for a violated constraint.
var localErrors = []error{
	gorm.ErrRecordNotFound, gorm.ErrDuplicatedKey, gorm.ErrForeignKeyViolated, sql.ErrNoRows,
	gorm.ErrMissingWhereClause, gorm.ErrPrimaryKeyRequired, gorm.ErrInvalidData,
	context.Canceled, context.DeadlineExceeded, sqlerr.ErrStale, sqlerr.ErrInsufficient, ErrGuardTooLate, ErrUnguarded,
}

// local reports whether err certainly does not mean that a server ended the transaction.
func local(err error) bool {
	return err.Error() == rowsClosed ||
		slices.ContainsFunc(localErrors, func(target error) bool { return errors.Is(err, target) })
}

// rowsClosed is the error of database/sql for rows that were closed without an error.
const rowsClosed = "sql: Rows are closed"

// lockWaitTimedOut reports whether the database gave up a wait for a row: lock_timeout of
// PostgreSQL, innodb_lock_wait_timeout of MySQL and MariaDB.
func lockWaitTimedOut(err error) bool {
	const lockNotAvailable = "55P03"
	return sqlerr.PostgresState(err) == lockNotAvailable || sqlerr.MySQLNumber(err) == sqlerr.MySQLLockWaitTimeout
}

// repeatable reports whether a transaction that returned err is certainly rolled back because of
// others, so that it may succeed if it runs again.
func repeatable(err error) bool {
	return sqlerr.Conflict(err) || errors.Is(err, sqlerr.ErrStale) && !errors.Is(err, ErrCommitUnknown)
}

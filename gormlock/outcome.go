package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"
)

// rejected reports whether the transaction is certainly rolled back although COMMIT returned err.
// The list is short on purpose. A proxy may forward COMMIT, lose the answer and return an error of
// its own, so every other error leaves the outcome unknown. Drivers are recognized by the shape of
// their errors, because this package imports none.
func rejected(tx gorm.Tx, err error) bool {
	if p, ok := tx.(*pinnedTx); ok && p.rolledBack {
		return true
	}
	return postgresRejects(postgresState(err)) || slices.Contains(mysqlRejects, mysqlNumber(err)) ||
		// A wrapper may have put its own text around the error.
		inTree(err, func(err error) bool { return slices.Contains(commitRolledBack, err.Error()) })
}

// postgresState returns the SQLSTATE in an error of pgx or lib/pq, or "".
func postgresState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// commitRolledBack are the errors of pgx and lib/pq for a COMMIT that the server answered with
// ROLLBACK.
var commitRolledBack = []string{
	"commit unexpectedly resulted in rollback",
	"pq: Could not complete operation in a failed transaction",
	"pq: could not complete operation in a failed transaction", // later versions
}

// postgresRejects reports whether PostgreSQL itself rolls a transaction back at COMMIT with this
// SQLSTATE. That is a violated constraint, a conflict with another transaction, or an exception of
// a deferred trigger. 40003 says that the completion is unknown.
func postgresRejects(state string) bool {
	const classConstraint, classRollback, completionUnknown, raised = "23", "40", "40003", "P0001"
	if len(state) != len(raised) || state == completionUnknown {
		return false
	}
	return state[:2] == classConstraint || state[:2] == classRollback || state == raised
}

// The errors of MySQL, MariaDB and TiDB that have a meaning here.
const (
	mysqlDuplicate       = 1062
	mysqlQueryKilled     = 1317
	mysqlChangedRow      = 1020 // since the snapshot, on MariaDB
	mysqlLockWaitTimeout = 1205
	mysqlLockTableFull   = 1206
	mysqlDeadlock        = 1213
	mysqlNoSavepoint     = 1305
	mysqlInTransaction   = 1568
	mysqlStatementTime   = 1969
	mysqlPluginRollback  = 3101 // by Group Replication
	tidbWriteConflict    = 9007
)

// mysqlRejects are the errors with which a server rolls back a transaction at COMMIT. Galera
// reports a conflict between nodes as a deadlock.
var mysqlRejects = []uint64{mysqlDuplicate, mysqlDeadlock, mysqlPluginRollback, tidbWriteConflict}

// mysqlInterrupted are the errors of a statement that KILL QUERY or MariaDB's max_statement_time
// ended.
var mysqlInterrupted = []uint64{mysqlQueryKilled, mysqlStatementTime}

// tooLarge reports whether MySQL or MariaDB did not run a statement because it is too long. It has
// several errors for that, and each names the variable.
func tooLarge(err error) bool {
	return mysqlNumber(err) != 0 && strings.Contains(err.Error(), "max_allowed_packet")
}

// mysqlNumber returns the number of a server's error, or 0.
func mysqlNumber(err error) uint64 {
	if number := mysqlField(err, "Number"); number.IsValid() && number.CanUint() {
		return number.Uint()
	}
	return 0
}

// mysqlState returns the SQLSTATE of a server's error, an array of bytes, or a text without digits.
func mysqlState(err error) string { return fmt.Sprintf("%s", mysqlField(err, "SQLState")) }

// mysqlField finds a field of the *mysql.MySQLError of go-sql-driver/mysql in err.
func mysqlField(err error, name string) (field reflect.Value) {
	inTree(err, func(err error) bool {
		v := reflect.ValueOf(err)
		if v.Kind() != reflect.Pointer || v.IsNil() {
			return false
		}
		v = v.Elem()
		found := v.Kind() == reflect.Struct && v.Type().Name() == "MySQLError"
		if found {
			field = v.FieldByName(name)
		}
		return found
	})
	return field
}

// The primary result codes of SQLite. The higher bits of a code say more.
const (
	sqliteError      = 1
	sqliteIsBusy     = 5
	sqliteLocked     = 6
	sqliteConstraint = 19
)

// sqliteCode finds the result code in the error of an SQLite driver: a method Code, as
// modernc.org's has one, or a field, as mattn's has.
func sqliteCode(err error) (code int, ok bool) {
	inTree(err, func(err error) bool {
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() != reflect.Struct || v.Type().Name() != "Error" ||
			!strings.Contains(v.Type().PkgPath(), "sqlite") {
			return false
		}
		if c, has := err.(interface{ Code() int }); has {
			code, ok = c.Code(), true
		} else if f := v.FieldByName("Code"); f.IsValid() && f.CanInt() {
			code, ok = int(f.Int()), true
		}
		return ok
	})
	return code, ok
}

// sqliteBusy reports whether SQLite refused a statement because of another connection.
func sqliteBusy(err error) bool {
	code, ok := sqliteCode(err)
	return ok && (code&0xff == sqliteIsBusy || code&0xff == sqliteLocked)
}

// sqliteRefuses reports whether SQLite refused a COMMIT with err and left the transaction open.
// After other errors, such as those of the disk, nobody knows.
func sqliteRefuses(err error) bool {
	code, ok := sqliteCode(err)
	return sqliteBusy(err) || ok && code&0xff == sqliteConstraint
}

// inTree reports whether is holds for err or for an error that it wraps.
func inTree(err error, is func(error) bool) bool {
	if err == nil || is(err) {
		return err != nil
	}
	switch wrapper := err.(type) {
	case interface{ Unwrap() error }:
		return inTree(wrapper.Unwrap(), is)
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(wrapper.Unwrap(), func(err error) bool { return inTree(err, is) })
	}
	return false
}

// harmless reports whether the transaction is certainly as it was before the statement that
// returned err, or the database lets nothing more happen in it. PostgreSQL does so after any error,
// the others if they say that the statement was wrong.
func harmless(d dialect, err error) bool {
	if d.name == "postgres" { // a wrapper for MySQL may have SQLState, too
		return postgresState(err) != ""
	}
	if number := mysqlNumber(err); number != 0 {
		state := mysqlState(err)
		return number != mysqlNoSavepoint &&
			(strings.HasPrefix(state, "22") || strings.HasPrefix(state, "23") || strings.HasPrefix(state, "42"))
	}
	code, ok := sqliteCode(err)
	return ok && (code&0xff == sqliteConstraint || code == sqliteError)
}

// gone reports whether err means that MySQL or MariaDB rolled the whole transaction back, so that
// the next statement would commit by itself. A lock wait that timed out is not here: see
// [transaction.ended].
func gone(err error) bool {
	return slices.Contains([]uint64{mysqlChangedRow, mysqlLockTableFull, mysqlDeadlock}, mysqlNumber(err)) ||
		strings.HasPrefix(mysqlState(err), "40")
}

// localErrors are frequent errors that no server returned, or only for a violated constraint.
var localErrors = []error{
	gorm.ErrRecordNotFound, gorm.ErrDuplicatedKey, gorm.ErrForeignKeyViolated, sql.ErrNoRows,
	gorm.ErrMissingWhereClause, gorm.ErrPrimaryKeyRequired, gorm.ErrInvalidData,
	context.Canceled, context.DeadlineExceeded, ErrStale, ErrInsufficient, ErrGuardTooLate, ErrUnguarded,
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
	return postgresState(err) == lockNotAvailable || mysqlNumber(err) == mysqlLockWaitTimeout
}

// repeatable reports whether a transaction that returned err is certainly rolled back because of
// others, so that it may succeed if it runs again.
func repeatable(err error) bool {
	return isConflict(err) || errors.Is(err, ErrStale) && !errors.Is(err, ErrCommitUnknown)
}

// aborted reports whether PostgreSQL refused a statement because an earlier one failed.
func aborted(err error) bool {
	return postgresState(err) == "25P02"
}

// noSavepoint reports whether err means that no transaction with our savepoint is open any more.
func noSavepoint(err error) bool {
	if err == nil {
		return false
	}
	state := postgresState(err)
	return state == "25P01" || state == "3B001" || mysqlNumber(err) == mysqlNoSavepoint ||
		strings.Contains(err.Error(), "no such savepoint")
}

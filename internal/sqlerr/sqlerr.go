// Package sqlerr judges the errors of databases. The shape of an error tells the driver, because
// this package imports none.
package sqlerr

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// ErrCommitUnknown is that of gormlock and of gormlock/stock.
var ErrCommitUnknown = errors.New("the outcome of COMMIT is unknown")

// ErrInsufficient is that of gormlock/stock. No server returned it.
var ErrInsufficient = errors.New("not enough left")

// ErrStale is that of gormlock/optimistic. No server returned it.
var ErrStale = errors.New("the row was changed or deleted by others since it was read, " +
	"or its version was not read with it")

// Rejected reports whether the transaction is certainly rolled back although COMMIT returned err.
// The list is short on purpose. A proxy may forward COMMIT, lose the answer and return its own
// error, so every other error leaves the outcome unknown.
func Rejected(err error) bool {
	return postgresRejects(PostgresState(err)) || slices.Contains(mysqlRejects, MySQLNumber(err)) ||
		// A wrapper may have put its own text around the error.
		InTree(err, func(err error) bool { return slices.Contains(commitRolledBack, err.Error()) })
}

// Conflict reports whether the database rolled a transaction back because of others, so that it
// may run again. That is a deadlock, a serialization failure, or a busy SQLite. A COMMIT with an
// unknown outcome is no conflict, whatever error came with it.
func Conflict(err error) bool {
	if errors.Is(err, ErrCommitUnknown) {
		return false
	}
	state, number := PostgresState(err), MySQLNumber(err)
	return state == "40001" || state == "40P01" ||
		number == MySQLDeadlock || number == MySQLChangedRow || SQLiteBusy(err)
}

// Refused reports whether a server refused what was written: a value, a violated constraint, or an
// error that a trigger raised.
func Refused(err error) bool {
	code, isSQLite := SQLiteCode(err)
	return inClass(err, "22", "23", "45", "P0") || MySQLNumber(err) == mysqlCheckViolated ||
		isSQLite && code&0xff == SQLiteConstraint
}

// Unavailable reports whether a server could not run a statement, whatever the statement says. It is
// going down, it is out of something, or it waited too long for a lock.
func Unavailable(err error) bool {
	number := MySQLNumber(err)
	return number == MySQLLockWaitTimeout || number == MySQLLockTableFull ||
		inClass(err, "08", "25", "40", "53", "55P03", "57", "58")
}

// inClass reports whether the SQLSTATE of a server's error begins with one of these.
func inClass(err error, classes ...string) bool {
	state := PostgresState(err)
	if MySQLNumber(err) != 0 {
		state = MySQLState(err)
	}
	return slices.ContainsFunc(classes, func(class string) bool { return strings.HasPrefix(state, class) })
}

// PostgresState returns the SQLSTATE in an error of pgx or lib/pq, or "".
func PostgresState(err error) string {
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
	MySQLDuplicate       = 1062
	MySQLQueryKilled     = 1317
	MySQLChangedRow      = 1020 // since the snapshot, on MariaDB
	MySQLLockWaitTimeout = 1205
	MySQLLockTableFull   = 1206
	MySQLDeadlock        = 1213
	MySQLNoSavepoint     = 1305
	MySQLInTransaction   = 1568
	MySQLStatementTime   = 1969
	MySQLPluginRollback  = 3101 // by Group Replication
	mysqlCheckViolated   = 3819
	TiDBWriteConflict    = 9007
)

// mysqlRejects are the errors with which a server rolls back a transaction at COMMIT. Galera
// reports a conflict between nodes as a deadlock.
var mysqlRejects = []uint64{MySQLDuplicate, MySQLDeadlock, MySQLPluginRollback, TiDBWriteConflict}

// MySQLInterrupted are the errors of a statement that KILL QUERY or MariaDB's max_statement_time
// ended.
var MySQLInterrupted = []uint64{MySQLQueryKilled, MySQLStatementTime}

// TooLarge reports whether MySQL or MariaDB did not run a statement because it is too long. It has
// several errors for that, and each names the variable.
func TooLarge(err error) bool {
	return MySQLNumber(err) != 0 && strings.Contains(err.Error(), "max_allowed_packet")
}

// MySQLNumber returns the number of a server's error, or 0.
func MySQLNumber(err error) uint64 {
	if number := mysqlField(err, "Number"); number.IsValid() && number.CanUint() {
		return number.Uint()
	}
	return 0
}

// MySQLState returns the SQLSTATE of a server's error, an array of bytes, or a text without digits.
func MySQLState(err error) string { return fmt.Sprintf("%s", mysqlField(err, "SQLState")) }

// mysqlField finds a field of the *mysql.MySQLError of go-sql-driver/mysql in err.
func mysqlField(err error, name string) (field reflect.Value) {
	InTree(err, func(err error) bool {
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
	SQLiteError      = 1
	sqliteIsBusy     = 5
	sqliteLocked     = 6
	SQLiteConstraint = 19
)

// SQLiteCode finds the result code in the error of an SQLite driver. That of modernc.org has a method
// Code. mattn's has fields, and the one named Code has the primary code only.
func SQLiteCode(err error) (code int, ok bool) {
	InTree(err, func(err error) bool {
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() != reflect.Struct || v.Type().Name() != "Error" ||
			!strings.Contains(v.Type().PkgPath(), "sqlite") {
			return false
		}
		if c, has := err.(interface{ Code() int }); has {
			code, ok = c.Code(), true
			return true
		}
		for _, name := range []string{"ExtendedCode", "Code"} {
			if f := v.FieldByName(name); !ok && f.IsValid() && f.CanInt() && f.Int() != 0 {
				code, ok = int(f.Int()), true
			}
		}
		return ok
	})
	return code, ok
}

// SQLiteBusy reports whether SQLite refused a statement because of another connection.
func SQLiteBusy(err error) bool {
	code, ok := SQLiteCode(err)
	return ok && (code&0xff == sqliteIsBusy || code&0xff == sqliteLocked)
}

// SQLiteRefuses reports whether SQLite refused a COMMIT with err and left the transaction open.
// After other errors, such as those of the disk, nobody knows.
func SQLiteRefuses(err error) bool {
	code, ok := SQLiteCode(err)
	return SQLiteBusy(err) || ok && code&0xff == SQLiteConstraint
}

// InTree reports whether is holds for err or for an error that it wraps.
func InTree(err error, is func(error) bool) bool {
	if err == nil || is(err) {
		return err != nil
	}
	switch wrapper := err.(type) {
	case interface{ Unwrap() error }:
		return InTree(wrapper.Unwrap(), is)
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(wrapper.Unwrap(), func(err error) bool { return InTree(err, is) })
	}
	return false
}

// Passing reports whether err itself is a server's error about its state, and not about what was
// written. The same statement may succeed later. It does not look at the errors that err wraps.
func Passing(err error) bool {
	switch err.(type) {
	case nil, interface{ Unwrap() error }, interface{ Unwrap() []error }:
		return false
	}
	_, isSQLite := SQLiteCode(err)
	return (isSQLite || MySQLNumber(err) != 0 || PostgresState(err) != "") && !Refused(err)
}

// ConflictItself is [Conflict] for err itself. A server that reports it has rolled back. SQLite has
// not: the transaction may still be open.
func ConflictItself(err error) bool {
	return Passing(err) && Conflict(err) && !SQLiteBusy(err)
}

package gormlock

import (
	"database/sql"
	"errors"
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"
)

// rejected says whether a COMMIT that returned err has certainly not happened: the server said no, in an error of its
// own, or the driver found the transaction rolled back. Everything else, a lost connection above all, is unknown.
// Drivers are told by what their errors look like, as this package imports none.
func rejected(tx gorm.Tx, err error) bool {
	if p, ok := tx.(*pinnedTx); ok && p.rolledBack {
		return true
	}
	var state interface{ SQLState() string } // pgx and lib/pq
	if errors.As(err, &state) {
		return definiteState(state.SQLState())
	}
	if number, ok := mysqlNumber(err); ok {
		return !slices.Contains(mysqlUnknown, number)
	}
	return errors.Is(err, sql.ErrTxDone) || slices.Contains(rolledBack, err.Error())
}

// rolledBack are the errors of drivers whose COMMIT was answered with ROLLBACK: pgx's and lib/pq's.
var rolledBack = []string{
	"commit unexpectedly resulted in rollback",
	"pq: Could not complete operation in a failed transaction",
}

// definiteState leaves out the classes in which PostgreSQL may have committed before it gave up: connection exceptions,
// shutdown and crash, statement completion unknown, system and internal errors.
func definiteState(code string) bool {
	if len(code) != 5 || code == "40003" {
		return false
	}
	return !slices.ContainsFunc([]string{"08", "57P", "58", "F0", "XX"}, func(class string) bool { return strings.HasPrefix(code, class) })
}

// mysqlUnknown are the errors with which MySQL and MariaDB end a connection, or a COMMIT on its way: server shutdown,
// aborted connection, network errors, error during COMMIT, query interrupted, connection killed.
var mysqlUnknown = []uint64{1053, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1317, 1927}

// mysqlInterrupted are the errors of a statement that was ended by KILL QUERY, or by MariaDB's max_statement_time.
var mysqlInterrupted = []uint64{1317, 1969}

// deadlock is MySQL's number of one, which ends the whole transaction.
const deadlock = 1213

// mysqlNumber finds the error number of a server's answer.
func mysqlNumber(err error) (uint64, bool) {
	number := mysqlField(err, "Number")
	if !number.IsValid() || !number.CanUint() {
		return 0, false
	}
	return number.Uint(), true
}

// mysqlState finds the SQLSTATE of a server's answer; "" where there is none.
func mysqlState(err error) string {
	state := mysqlField(err, "SQLState")
	if !state.IsValid() || state.Kind() != reflect.Array || state.Type().Elem().Kind() != reflect.Uint8 {
		return ""
	}
	text := make([]byte, state.Len())
	reflect.Copy(reflect.ValueOf(text), state)
	return string(text)
}

// mysqlField finds a field of the *mysql.MySQLError of go-sql-driver/mysql in err.
func mysqlField(err error, name string) (field reflect.Value) {
	inTree(err, func(err error) bool {
		v := reflect.ValueOf(err)
		found := v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().Kind() == reflect.Struct && v.Elem().Type().Name() == "MySQLError"
		if found {
			field = v.Elem().FieldByName(name)
		}
		return found
	})
	return field
}

// inTree says whether is holds for an error or one that it wraps, joined ones too.
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

// harmless says whether the transaction is certainly as it was before the statement that returned err, or the database
// lets nothing more happen in it: PostgreSQL after any error; the others where they say that the statement was wrong.
func harmless(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return true
	}
	if number, ok := mysqlNumber(err); ok {
		state := mysqlState(err)
		return number != 1305 && (strings.HasPrefix(state, "22") || strings.HasPrefix(state, "23") || strings.HasPrefix(state, "42"))
	}
	var coded interface{ Code() int } // SQLite
	if errors.As(err, &coded) {
		const sqlError, constraint = 1, 19
		return coded.Code()&0xff == constraint || coded.Code() == sqlError
	}
	return false
}

// gone says whether err means that MySQL or MariaDB has rolled the whole transaction back: the next statement would
// commit by itself. 1020 is a row that changed since the snapshot, 1206 a lock table that is full, 1213 a deadlock.
func gone(err error) bool {
	number, ok := mysqlNumber(err)
	return ok && (slices.Contains([]uint64{1020, 1206, deadlock}, number) || strings.HasPrefix(mysqlState(err), "40"))
}

// repeatable reports whether a transaction that returned err is rolled back for certain, for the sake of others: it may
// succeed if it runs again.
func repeatable(err error) bool {
	return isConflict(err) || errors.Is(err, ErrStale) && !errors.Is(err, ErrCommitUnknown)
}

// aborted says whether PostgreSQL refused a statement because one before it failed.
func aborted(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == "25P02"
}

// noSavepoint says whether err means that there is no transaction with our savepoint any more.
func noSavepoint(err error) bool {
	if err == nil {
		return false
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState() == "25P01" || state.SQLState() == "3B001"
	}
	if number, ok := mysqlNumber(err); ok {
		return number == 1305
	}
	return strings.Contains(err.Error(), "no such savepoint")
}

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

// deadlock is MySQL's number of one, which ends the whole transaction.
const deadlock = 1213

// mysqlNumber finds the error number of a server's answer, as *mysql.MySQLError of go-sql-driver/mysql has it.
func mysqlNumber(err error) (uint64, bool) {
	var found uint64
	ok := inTree(err, func(err error) bool {
		v := reflect.ValueOf(err)
		if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct || v.Elem().Type().Name() != "MySQLError" {
			return false
		}
		number := v.Elem().FieldByName("Number")
		if !number.IsValid() || !number.CanUint() {
			return false
		}
		found = number.Uint()
		return true
	})
	return found, ok
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

package gormlock

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/sqltable"
	"github.com/onelane/onelane/internal/undone"
)

// This file judges the errors of drivers, one question each. It sends nothing. Package sqlerr has
// the questions that package stock asks, too.

// verdict is what the error of a statement says about its transaction.
type verdict int

const (
	verdictOpen    verdict = iota // It goes on, or the database refuses what follows.
	verdictEnded                  // The database rolled it back. Later statements would commit by themselves.
	verdictTimeout                // A setting of the server decides.
	verdictAsk                    // The error does not tell.
)

// judge returns what err, the error of a statement, says about its transaction. PostgreSQL refuses
// all statements after an error, unless there is no transaction any more. SQLite never tells: it
// rolls back if a write is interrupted, the disk is full, or a constraint or a trigger says
// ROLLBACK. The others roll back after a conflict, and go on if they say that the statement was wrong.
func judge(d sqltable.Dialect, err error) verdict {
	switch d.Name {
	case sqltable.Postgres:
		if sqlerr.PostgresState(err) == postgresNoTransaction {
			return verdictEnded
		}
		return verdictOpen
	case sqltable.SQLite:
		return verdictAsk
	}
	number, state := sqlerr.MySQLNumber(err), sqlerr.MySQLState(err)
	switch {
	case slices.Contains(mysqlEnds, number), strings.HasPrefix(state, "40"):
		return verdictEnded
	case number == sqlerr.MySQLLockWaitTimeout:
		return verdictTimeout
	case number == sqlerr.MySQLNoSavepoint:
		return verdictAsk
	case number != 0 && slices.Contains(mysqlWrong, state[:min(2, len(state))]), local(err):
		return verdictOpen
	}
	return verdictAsk
}

const postgresNoTransaction = "25P01"

var (
	mysqlEnds  = []uint64{sqlerr.MySQLChangedRow, sqlerr.MySQLLockTableFull, sqlerr.MySQLDeadlock}
	mysqlWrong = []string{"22", "23", "42"} // classes of SQLSTATE: values, constraints, syntax
)

// local reports whether err certainly does not mean that a server ended the transaction.
func local(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// commitRejected reports whether the transaction is certainly rolled back although COMMIT returned
// err.
func commitRejected(tx gorm.Tx, err error) bool {
	pinned, ok := tx.(interface{ rolledBack() bool })
	return ok && pinned.rolledBack() || sqlerr.Rejected(err)
}

// certainlyUndone reports whether all errors in err come from the guard or the database. Their
// transaction is rolled back, and answer is the last error of its connection. Any other error is
// that of a function, which may have done something elsewhere. A value or a constraint that the
// database refuses does not count, because trying again would not help.
func certainlyUndone(err, answer error) bool {
	answered := answer != nil && reflect.TypeOf(answer).Comparable() && !sqlerr.Refused(answer)
	return undone.Certain(err, func(err error) bool {
		return err == sqlerr.ErrStale || sqlerr.Passing(err) || answered && err == answer
	})
}

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

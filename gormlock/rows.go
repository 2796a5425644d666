package gormlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqlerr"
)

// A database may end the whole transaction while rows are read: MySQL is a deadlock's victim,
// SQLite runs the statement only then. Later statements would commit by themselves. No callback
// sees that error, so the transaction keeps the rows and looks at them before its next statement
// and COMMIT.

// handedOut keeps the rows of a statement under a guard, and those of MySQL also without one.
// MySQL's COMMIT says nothing of a deadlock, and must not call the functions of AfterCommit.
func (t *transaction) handedOut(rows *sql.Rows) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rows != nil && (len(t.locks) > 0 || t.silent()) {
		t.rows = append(t.rows, rows)
	}
}

// silent reports whether COMMIT succeeds although the database rolled the transaction back. MySQL
// and MariaDB do so. A guard looks for itself. t.mu is held.
func (t *transaction) silent() bool {
	return len(t.keys) == 0 && t.real != nil && t.pool.dialect.Name == "mysql"
}

// noteGone notes that the database rolled an unguarded transaction back with the statement that
// returned err. t.mu is held.
func (t *transaction) noteGone(err error) {
	if gone(err) || t.timedOut(context.WithoutCancel(t.ctx), err) {
		t.gone = err
		t.undone.rolledBack("")
	}
}

// stands returns why no statement may run any more, after a look at the rows that were handed out.
// t.mu is held.
func (t *transaction) stands() error {
	if err := t.usable(); err != nil {
		return err
	}
	open := t.rows[:0]
	for _, r := range t.rows {
		_, err := r.Columns() // not Err, which only the goroutine that calls Next may call
		switch {
		case err == nil:
			open = append(open, r)
		case len(t.keys) == 0:
			t.noteGone(err)
		case t.failed == nil && t.ended(err):
			err = fmt.Errorf("the database rolled the transaction back while rows were read: %w", err)
			t.fail(guardError(t.keys, err))
		}
	}
	t.rows = open
	return t.failed
}

// closeRows closes the rows that are still open. So an error among rows that nobody read is seen
// before COMMIT, which would close them too. t.mu is held.
func (t *transaction) closeRows() {
	for _, r := range t.rows {
		_ = r.Close()
	}
}

// explain adds the loss of the lock, or the end of the context, to the error of a statement.
func (t *transaction) explain(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.keys) == 0 {
		if t.real != nil {
			t.noteGone(err)
		}
		return err
	}
	if t.failed == nil && !t.over && t.ended(err) {
		t.fail(guardError(t.keys, fmt.Errorf("the database has rolled the transaction back: %w", err)))
	}
	why := t.usable()
	for _, cause := range explanations {
		if errors.Is(why, cause) && !errors.Is(err, cause) {
			return fmt.Errorf("%w: %w", why, err)
		}
	}
	return err
}

// ended reports whether the database ended the whole transaction with the statement that returned
// err. SQLite does so if a write is interrupted, the disk is full, or a constraint or a trigger
// says ROLLBACK; only BEGIN shows it. t.mu is held.
func (t *transaction) ended(err error) bool {
	switch {
	case t.real == nil:
		return gone(err)
	case t.pool.dialect.Name == "sqlite":
		_, begin := t.real.ExecContext(context.WithoutCancel(t.ctx), "BEGIN")
		return begin == nil
	}
	return gone(err) || t.timedOut(context.WithoutCancel(t.ctx), err) || t.vanished(err)
}

// timedOut reports whether err is a lock wait that timed out. It counts if the MySQL or MariaDB
// rolls the whole transaction back then, or does not say what it does. t.mu is held.
func (t *transaction) timedOut(ctx context.Context, err error) bool {
	if sqlerr.MySQLNumber(err) != sqlerr.MySQLLockWaitTimeout {
		return false
	}
	var all bool
	row := t.real.QueryRowContext(ctx, "SELECT @@innodb_rollback_on_timeout")
	return row.Scan(&all) != nil || all
}

// vanished reports whether MySQL or MariaDB has no transaction open any more. It asks the server if
// err does not tell, because other drivers and proxies have errors of their own for a deadlock. In
// an open transaction, SET TRANSACTION is an error, whose text has its number with every driver.
// Elsewhere it changes nothing. t.mu is held.
func (t *transaction) vanished(err error) bool {
	open := func(r *sql.Rows) bool { _, err := r.Columns(); return err == nil }
	if t.pool.dialect.Name != "mysql" || harmless(t.pool.dialect, err) || local(err) || slices.ContainsFunc(t.rows, open) {
		return false // while rows are open, no error is the server's, and nothing can be sent
	}
	_, answer := t.real.ExecContext(context.WithoutCancel(t.ctx), "SET TRANSACTION READ WRITE")
	inTransaction := answer != nil && strings.Contains(answer.Error(), strconv.Itoa(sqlerr.MySQLInTransaction))
	return !inTransaction && !errors.Is(answer, driver.ErrBadConn)
}

// watchesRow reports whether the transaction must see the error of a Row.
func (t *transaction) watchesRow() bool {
	if t == nil {
		return false
	}
	if t.guarded() {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.silent() && !t.undone.empty()
}

// rowAtOnce lets GORM's callback for Row, which is query, read the row at once under a guard, or if
// AfterCommit waits for MySQL. A *sql.Row keeps the error with which the database ended the
// transaction to itself.
func rowAtOnce(query func(*gorm.DB)) func(*gorm.DB) {
	return func(db *gorm.DB) {
		t, _ := transactionOf(db.Statement.ConnPool)
		wanted, _ := db.Get("rows")
		if db.Error != nil || db.DryRun || wanted == true || !t.watchesRow() {
			query(db)
			return
		}
		db.Statement.Settings.Store("rows", true)
		query(db)
		db.Statement.Settings.Delete("rows")
		rows, _ := db.Statement.Dest.(*sql.Rows)
		err := db.Error
		db.Error = nil // Scan reports the error of a Row
		switch {
		case err != nil:
			db.Statement.Dest = failedRow(err)
		case rows != nil:
			row := firstRow(rows)
			if err := rows.Close(); err != nil {
				row = failedRow(err)
			}
			t.handedOut(rows)
			db.Statement.Dest = row
		}
	}
}

var valuerType = reflect.TypeFor[driver.Valuer]()

// tryValuers calls the driver.Valuers that database/sql is about to call. If one panics inside
// database/sql, in a query or a prepared statement, the transaction can never end. Commit and
// Rollback wait for its connection forever.
func tryValuers(args []any) {
	for _, arg := range args {
		if named, ok := arg.(sql.NamedArg); ok {
			arg = named.Value
		}
		valuer, ok := arg.(driver.Valuer)
		if !ok {
			continue
		}
		if v := reflect.ValueOf(valuer); v.Kind() == reflect.Pointer && v.IsNil() && v.Type().Elem().Implements(valuerType) {
			continue // NULL
		}
		_, _ = valuer.Value()
	}
}

// tryValuers calls the driver.Valuers under a guard only, so that nothing changes without one.
func (t *transaction) tryValuers(args []any) {
	if t.guarded() {
		tryValuers(args)
	}
}

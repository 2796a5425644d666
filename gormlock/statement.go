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

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/undone"
)

// A database may end the whole transaction while rows are read: MySQL is a deadlock's victim,
// SQLite runs the statement only then. Later statements would commit by themselves. No callback
// sees that error, so the transaction keeps the rows and looks at them before its next statement
// and COMMIT.

// answered notes an error of the connection, and returns it.
func (t *transaction) answered(err error) error {
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.answer = err
	}
	return err
}

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

// explanations are the causes that [transaction.explain] adds.
var explanations = []error{
	core.ErrLost, core.ErrClosed, context.Canceled, context.DeadlineExceeded,
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

// rolledBack is rolledBackLocked, for those who do not hold t.mu.
func (t *transaction) rolledBack(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rolledBackLocked(err)
}

// rolledBackLocked marks the error of a transaction that is rolled back, if it comes from the guard or
// the database. Any other error is that of a function, which may have done something elsewhere. A
// value or a constraint that the database refuses has no mark, because trying again would not help.
func (t *transaction) rolledBackLocked(err error) error {
	if errors.Is(err, ErrCommitUnknown) || errors.Is(t.failed, ErrCommitUnknown) {
		return err
	}
	answered := t.answer != nil && reflect.TypeOf(t.answer).Comparable() && !sqlerr.Refused(t.answer)
	ours := func(err error) bool {
		return err == sqlerr.ErrStale || sqlerr.Passing(err) || answered && err == t.answer
	}
	if undone.Certain(err, ours) {
		return undone.Mark(err)
	}
	return err
}

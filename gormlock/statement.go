package gormlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/undone"
)

// answered judges the answer to a query, and returns its error. Under locks it keeps the rows, to
// judge what their reader sees. On MySQL it keeps them without locks, too.
func (t *transaction) answered(query string, rows *sql.Rows, err error) error {
	verb, savepoint := savepointIn(query)
	if err == nil && verb == "" && rows == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.judgeLocked(err)
	} else if rows != nil && (t.guarded() || t.silentLocked()) {
		t.rows = append(t.rows, rows)
	}
	if verb != "" {
		t.noteSavepointLocked(verb, savepoint, err)
	}
	return err
}

// judgeLocked gives the transaction up if the database rolled it back with the statement that
// returned err. Without locks it notes that, as the caller may go on.
func (t *transaction) judgeLocked(err error) {
	t.answer = err
	switch t.state() {
	case stateGuarded:
		if t.endedLocked(err) {
			t.failLocked(guardError(t.held.demand.keys, fmt.Errorf("the database has rolled the transaction back: %w", err)))
		}
	case statePlain:
		if t.endedLocked(err) {
			t.gone = err
			t.undone.rolledBack("")
		}
	}
}

// endedLocked reports whether the database ended the whole transaction with the statement that
// returned err. If err does not tell, it asks the database, but not without locks.
func (t *transaction) endedLocked(err error) bool {
	ctx := context.WithoutCancel(t.ctx)
	switch v := judge(t.pool.dialect, err); {
	case v == verdictTimeout:
		return t.rollsBackOnTimeoutLocked(ctx)
	case v == verdictAsk:
		return t.state() == stateGuarded && t.vanishedLocked(ctx)
	default:
		return v == verdictEnded
	}
}

// rollsBackOnTimeoutLocked reports whether MySQL or MariaDB rolls the whole transaction back when
// the wait for a lock times out. If it does not say, it may.
func (t *transaction) rollsBackOnTimeoutLocked(ctx context.Context) bool {
	var all bool
	row := t.real.QueryRowContext(ctx, "SELECT @@innodb_rollback_on_timeout")
	return row.Scan(&all) != nil || all
}

// vanishedLocked asks whether the database has no transaction open any more. On SQLite BEGIN
// succeeds then. On MySQL and MariaDB, SET TRANSACTION is an error in an open transaction, whose
// text has its number with every driver. Elsewhere it changes nothing. Other drivers of MySQL and
// proxies have other errors for a deadlock.
func (t *transaction) vanishedLocked(ctx context.Context) bool {
	if t.pool.dialect.Name == "sqlite" {
		_, begin := t.real.ExecContext(ctx, "BEGIN")
		return begin == nil
	}
	if t.readingLocked() {
		return false // while rows are open, no error is the server's, and nothing can be sent
	}
	_, answer := t.real.ExecContext(ctx, "SET TRANSACTION READ WRITE")
	inTransaction := answer != nil && strings.Contains(answer.Error(), strconv.Itoa(sqlerr.MySQLInTransaction))
	return !inTransaction && !errors.Is(answer, driver.ErrBadConn)
}

// explanations are the causes that [transaction.explain] adds.
var explanations = []error{
	core.ErrLost, core.ErrClosed, context.Canceled, context.DeadlineExceeded,
}

// explain adds the loss of the lock, or the end of the context, to the error of a statement.
func (t *transaction) explain(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	why := t.standsLocked()
	for _, cause := range explanations {
		if errors.Is(why, cause) && !errors.Is(err, cause) {
			return fmt.Errorf("%w: %w", why, err)
		}
	}
	return err
}

// marked is markedLocked for those who do not hold t.mu.
func (t *transaction) marked(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.markedLocked(err)
}

// markedLocked returns the error of a transaction that is rolled back, with a mark if it says so.
func (t *transaction) markedLocked(err error) error {
	unknown := errors.Is(err, ErrCommitUnknown) || t.state() == stateUnknown
	if !unknown && certainlyUndone(err, t.answer) {
		return undone.Mark(err)
	}
	return err
}

// silentLocked reports whether COMMIT succeeds although the database rolled the transaction back.
// MySQL and MariaDB do so, and then the functions of AfterCommit must not be called. Under locks the
// transaction is given up before.
func (t *transaction) silentLocked() bool {
	return t.state() == statePlain && t.pool.dialect.Name == "mysql"
}

// standsLocked returns why no statement may run any more, after a look at the rows. A database may
// end the whole transaction while rows are read: MySQL is a deadlock's victim, SQLite runs the
// statement only then. Later statements would commit by themselves.
func (t *transaction) standsLocked() error {
	if err := t.usableLocked(); err != nil {
		return err
	}
	if len(t.rows) == 0 {
		return nil
	}
	var errs []error
	t.rows = slices.DeleteFunc(t.rows, func(r *sql.Rows) bool {
		open, err := stateOf(r)
		if err != nil {
			errs = append(errs, err)
		}
		return !open
	})
	for _, err := range errs {
		t.judgeLocked(err)
	}
	return t.cause
}

// stateOf reports whether rows are open, and the error that closed them. Only the goroutine that
// calls Next may call Err.
func stateOf(r *sql.Rows) (open bool, err error) {
	const closed = "sql: Rows are closed" // without an error
	if _, err = r.Columns(); err != nil && err.Error() == closed {
		return false, nil
	}
	return err == nil, err
}

// readingLocked reports whether rows are open.
func (t *transaction) readingLocked() bool {
	return slices.ContainsFunc(t.rows, func(r *sql.Rows) bool { open, _ := stateOf(r); return open })
}

// closeRowsLocked closes the rows that are still open. So an error among rows that nobody read
// shows before COMMIT, which would close them too.
func (t *transaction) closeRowsLocked() {
	for _, r := range t.rows {
		_ = r.Close()
	}
}

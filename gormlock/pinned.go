package gormlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqlerr"
)

// pinnedTx is a transaction that keeps its connection until its outcome is known. SQLite may reject
// a COMMIT (a deferred constraint, a busy file), and MySQL's KILL QUERY may end a COMMIT or
// ROLLBACK. The transaction stays open on its connection then. Without this type, database/sql
// would give that connection to the next caller. On MySQL, the next BEGIN commits an open
// transaction.
type pinnedTx struct {
	*sql.Tx
	conn   *sql.Conn
	sqlite bool
	free   func() error // gives the connection back
	undone bool         // a COMMIT failed, and it is rolled back
	ending bool         // COMMIT or ROLLBACK is in the driver, or it panicked there
}

// pin begins a transaction on a connection of db. As database/sql does, it takes another connection
// if the driver reports a bad connection. All that are idle may be bad, and each bad one leaves the
// pool.
func pin(ctx context.Context, db *sql.DB, opts *sql.TxOptions, sqlite bool) (gorm.Tx, error) {
	for tries := 3 + db.Stats().Idle; ; tries-- {
		conn, err := db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		tx, err := pinOn(ctx, conn, opts, sqlite, conn.Close)
		if !errors.Is(err, driver.ErrBadConn) || tries <= 1 {
			return tx, err
		}
	}
}

func pinOn(ctx context.Context, conn *sql.Conn, opts *sql.TxOptions, sqlite bool, free func() error) (gorm.Tx, error) {
	tx, err := conn.BeginTx(ctx, opts)
	if err != nil {
		_ = free()
		return nil, err
	}
	return &pinnedTx{Tx: tx, conn: conn, sqlite: sqlite, free: free}, nil
}

func (t *pinnedTx) Commit() error {
	t.ending = true
	err := t.Tx.Commit()
	t.ending = false
	if err != nil && t.sqlite {
		_, rollback := t.conn.ExecContext(context.Background(), "ROLLBACK")
		// mattn's driver has rolled back by itself, so that there is nothing left to roll back.
		t.undone = rollback == nil || sqlerr.SQLiteRefuses(err) && t.ended()
	}
	if err != nil && !commitRejected(t, err) {
		t.close()
	}
	_ = t.free()
	return err
}

// rolledBack reports whether the transaction is certainly rolled back after Commit failed.
func (t *pinnedTx) rolledBack() bool { return t.undone }

func (t *pinnedTx) Rollback() error {
	if t.ending { // the driver panicked: database/sql keeps the connection, and free would wait forever
		return t.Tx.Rollback()
	}
	t.ending = true
	err := t.Tx.Rollback()
	t.ending = false
	if err != nil && !t.ended() {
		t.close()
	}
	_ = t.free()
	return err
}

// ended reports whether SQLite has rolled back by itself, as it does after some errors. Only BEGIN
// tells.
func (t *pinnedTx) ended() bool {
	if !t.sqlite {
		return false
	}
	if _, err := t.conn.ExecContext(context.Background(), "BEGIN"); err != nil {
		return false
	}
	_, err := t.conn.ExecContext(context.Background(), "ROLLBACK")
	return err == nil
}

// close closes the connection, so that nothing stays open on it. In gorm's Connection, rows that
// were opened before BEGIN keep the connection open until they are closed. Their owner may close
// them only after this transaction, so close waits for a second at most.
func (t *pinnedTx) close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

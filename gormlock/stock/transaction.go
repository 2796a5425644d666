package stock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/undone"
)

// errBegin and errCommit say how a transaction failed without a doubt. [ErrCommitUnknown] is the third.
var (
	errBegin  = errors.New("BEGIN failed, nothing was done")
	errCommit = errors.New("COMMIT was refused, nothing was done")
)

// transact runs fn in a transaction of db. It calls Begin and Commit by hand. Only the error of COMMIT
// may leave the outcome unknown, and gorm.DB's Transaction does not tell it from the others.
func transact(db *gorm.DB, table string, opts *sql.TxOptions, fn func(tx *gorm.DB) error) (err error) {
	tx := atSource(db, table).Begin(opts)
	if tx.Error != nil {
		return undone.Mark(fmt.Errorf("%w: %w", errBegin, tx.Error))
	}
	pool := tx.Statement.ConnPool.(gorm.TxCommitter)
	ended := false
	// fn may panic.
	defer func() {
		if !ended {
			_ = pool.Rollback()
		}
	}()
	if err = cmp.Or(fn(tx), tx.Statement.Context.Err()); err != nil {
		if undone.Certain(err, sqlerr.Passing) { // fn commits nothing, and its hooks may run several times
			return undone.Mark(err)
		}
		return err
	}
	ended = true
	err, rejected := commit(pool, db.Name() == "sqlite")
	switch {
	case err == nil || errors.Is(err, ErrCommitUnknown):
		return err
	case rejected:
		err = fmt.Errorf("%w: %w", errCommit, err)
		if sqlerr.Refused(err) {
			return err // trying again would not help
		}
		return undone.Mark(err)
	}
	return fmt.Errorf("%w: look whether the rows are stored: %w", ErrCommitUnknown, err)
}

// commit commits, and reports whether the database certainly rolled back instead.
func commit(pool gorm.TxCommitter, sqlite bool) (err error, rejected bool) {
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok {
		pool = prepared.Tx.(gorm.TxCommitter)
	}
	plain, ok := pool.(*sql.Tx)
	if !ok || !sqlite {
		err = pool.Commit()
		return err, err != nil && sqlerr.Rejected(err)
	}
	// If SQLite refuses a COMMIT, the transaction stays open, and database/sql would hand the
	// connection to others.
	if _, err = plain.ExecContext(context.Background(), "COMMIT"); err == nil {
		_ = plain.Rollback() // gives the connection back; there is nothing to roll back
		return nil, false
	}
	rolledBack := plain.Rollback()
	return err, rolledBack == nil || sqlerr.SQLiteRefuses(err)
}

// poolWrapper is gormlock's plugin. Transactions of its pool may have guards.
type poolWrapper interface {
	WrapPool(db *gorm.DB, inner gorm.ConnPool) (gorm.ConnPool, error)
}

// atSource returns db for a transaction that writes to a table. With dbresolver the connections for
// that are not always db's own. If the caller has chosen some, they are used.
func atSource(db *gorm.DB, table string) *gorm.DB {
	// Inside gorm.DB's Connection the pool is not the one of gormlock's plugin.
	if guards, ok := db.Plugins["gormlock"].(poolWrapper); ok {
		if wrapped, err := guards.WrapPool(db, db.Statement.ConnPool); err == nil && wrapped != db.Statement.ConnPool {
			db = db.Session(&gorm.Session{Context: db.Statement.Context}) // a statement of its own
			db.Statement.ConnPool = wrapped
			return db
		}
	}
	if _, ok := db.Plugins[gormkeys.Resolver]; !ok || db.Statement.ConnPool != db.ConnPool {
		return db
	}
	dry := db.Session(&gorm.Session{NewDB: true, DryRun: true, Context: context.Background()}).
		Table(table).Exec("DELETE FROM " + table)
	db = db.Session(&gorm.Session{Context: db.Statement.Context})
	db.Statement.ConnPool = cmp.Or(dry.Statement.ConnPool, db.Statement.ConnPool)
	return db
}

// isOpen reports whether db is in a transaction.
func isOpen(db *gorm.DB) bool {
	_, open := db.Statement.ConnPool.(gorm.TxCommitter)
	return open
}

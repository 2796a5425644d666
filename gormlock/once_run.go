package gormlock

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"crypto/hmac"
	"crypto/sha256"

	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/sqltable"
	"github.com/onelane/onelane/internal/undone"
)

// once is one call of Once.
type once struct {
	guard
	name    string
	dialect sqltable.Dialect
	attempt []byte // names the run in its row: each run has another one
}

var errReplayed = errors.New("done before")

func (o *once) error(err error) error { return fmt.Errorf("gormlock: Once %q: %w", o.name, err) }

const saltSize = 16

// newMark is the fingerprint as it is stored: a salt, and a hash keyed with it. Somebody could
// guess a plain hash of an amount.
func (o *once) newMark() []byte {
	if o.fingerprint == nil {
		return nil
	}
	salt := make([]byte, saltSize, saltSize+sha256.Size)
	_, _ = rand.Read(salt) // never fails
	return o.salted(salt)
}

func (o *once) salted(salt []byte) []byte {
	h := hmac.New(sha256.New, salt)
	h.Write(o.fingerprint)
	return h.Sum(bytes.Clone(salt))
}

func (o *once) matches(mark []byte) bool {
	if o.fingerprint == nil || len(mark) < saltSize {
		return true
	}
	return hmac.Equal(mark, o.salted(mark[:saltSize]))
}

const (
	insertOnce = `INSERT INTO onelane_once (name, attempt, fingerprint, created_at) VALUES (?, ?, ?, {now}) {conflict}`
	readOnce   = `SELECT attempt, fingerprint, result FROM onelane_once WHERE name = ?`
	storeOnce  = `UPDATE onelane_once SET result = ? WHERE name = ? AND attempt = ?`
)

// run runs fn, unless the key is done, and returns the stored result.
func (o *once) run(ctx context.Context, db *gorm.DB, fn func(tx *gorm.DB) ([]byte, error)) (stored []byte, err error) {
	var entered bool
	runs := 0
	alone := o.guard
	alone.retries = 0 // of the runs of Once instead
	err = sqltable.Repeat(ctx, 1+cmp.Or(o.retries, sqltable.ConflictTries-1), repeatable, func() error {
		if runs++; runs > 1 {
			instrumentsOf(db).retries.Add(ctx, 1)
		}
		entered = false
		// The row of an earlier run of this call is there only if that was committed.
		o.attempt = []byte(rand.Text())
		return alone.transact(session(ctx, db), o.name, func(tx *gorm.DB) error {
			entered = true
			stored, err = o.claim(tx)
			if err != nil {
				return err
			}
			if stored, err = fn(tx); err != nil {
				return err
			}
			return o.store(tx, stored)
		})
	})
	switch {
	case err == nil || errors.Is(err, errReplayed):
		return stored, nil
	case entered || ctx.Err() != nil:
		return nil, err
	}
	return o.withoutLock(ctx, db, err)
}

// withoutLock returns the result if the key is done already, although the lock was not acquired.
func (o *once) withoutLock(ctx context.Context, db *gorm.DB, why error) ([]byte, error) {
	stored, err := o.readWithoutLock(ctx, db)
	switch {
	case errors.Is(err, errReplayed):
		return stored, nil
	case err == nil || errors.Is(err, sql.ErrNoRows):
		return nil, why
	case errors.Is(err, ErrMismatch) || errors.Is(err, ErrUnfinished):
		return nil, o.error(err)
	}
	return nil, notRun(why, fmt.Errorf("%w; reading its row in onelane_once failed, too: %w", why, err))
}

// readWithoutLock reads the row from the primary. On MySQL a locking read would wait for the run
// that has the row. A transaction goes to the writer too, if it is not read-only. Its level does
// not depend on the session's.
func (o *once) readWithoutLock(ctx context.Context, db *gorm.DB) ([]byte, error) {
	if o.dialect.Name != sqltable.MySQL {
		return o.read(ctx, db.Statement.ConnPool, o.dialect.AtWriter(readOnce, "onelane_once"))
	}
	readIn := func(opts ...*sql.TxOptions) ([]byte, error) {
		tx := unguarded(db.WithContext(ctx)).Begin(opts...)
		if tx.Error != nil {
			return nil, tx.Error
		}
		defer tx.Rollback()
		return o.read(ctx, tx.Statement.ConnPool, readOnce)
	}
	stored, err := readIn(&sql.TxOptions{Isolation: sql.LevelReadCommitted})
	// With autocommit off, an earlier read has left a transaction open. Only a BEGIN without a level ends it.
	if sqlerr.MySQLNumber(err) == sqlerr.MySQLInTransaction {
		return readIn()
	}
	return stored, err
}

// notRun marks err if fn did not run because of why, which says so.
func notRun(why, err error) error {
	if claim.NothingDone(why) {
		return undone.Mark(err)
	}
	return err
}

// claim inserts the row of the key. If the key is done, claim returns its result and errReplayed,
// so that there is nothing to commit. The database waits for an open transaction that inserted the
// row.
func (o *once) claim(tx *gorm.DB) ([]byte, error) {
	ctx, conn := tx.Statement.Context, tx.Statement.ConnPool
	t, _ := transactionOf(conn)
	err := t.begun(tx)
	if err != nil {
		return nil, err
	}
	mark := o.newMark()
	for range 3 {
		_, err = conn.ExecContext(ctx, o.dialect.SQL(insertOnce), []byte(o.name), o.attempt, mark)
		if err != nil {
			return nil, o.explain(tx, fmt.Errorf("writing to onelane_once, which gormlock.Migrate makes: %w", err))
		}
		var stored []byte
		// A locking read sees the newest row at every isolation level. Affected rows would not do:
		// drivers count them differently.
		stored, err = o.read(ctx, conn, readOnce+" {locking}")
		if err == nil || errors.Is(err, errReplayed) {
			return stored, err
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return nil, o.explain(tx, err)
		}
		// The row was purged in between.
	}
	return nil, o.explain(tx, fmt.Errorf("its row in onelane_once was gone each time it was looked for; call Purge with a longer age: %w", err))
}

// read returns nil if the row is this run's, or the result and errReplayed if it is another's.
func (o *once) read(ctx context.Context, conn gorm.ConnPool, query string) ([]byte, error) {
	// If GORM cannot prepare, its Row is empty and panics.
	if prepared, ok := conn.(*gorm.PreparedStmtDB); ok {
		conn = prepared.ConnPool
	}
	conn = gormkeys.InnerTx(conn)
	var attempt, mark, result []byte
	err := conn.QueryRowContext(ctx, o.dialect.SQL(query), []byte(o.name)).
		Scan(&attempt, &mark, &result)
	switch {
	case err != nil:
		return nil, err
	case bytes.Equal(attempt, o.attempt):
		return nil, nil
	case !o.matches(mark):
		return nil, ErrMismatch
	case len(result) == 0:
		return nil, fmt.Errorf("%w; look at what it did, and delete its row in onelane_once to let it run again", ErrUnfinished)
	}
	return result, errReplayed
}

// store writes the result into this run's row.
func (o *once) store(tx *gorm.DB, result []byte) error {
	done, err := tx.Statement.ConnPool.ExecContext(tx.Statement.Context, o.dialect.SQL(storeOnce),
		result, []byte(o.name), o.attempt)
	if err != nil {
		return o.explain(tx, err)
	}
	if n, err := done.RowsAffected(); err != nil || n != 1 {
		return o.error(fmt.Errorf("its row in onelane_once is gone, %d left; the function must not end the transaction: %w",
			n, errors.Join(err, gorm.ErrInvalidTransaction)))
	}
	return nil
}

// explain adds the key and, if the lock was lost, that.
func (o *once) explain(tx *gorm.DB, err error) error {
	if t, _ := transactionOf(tx.Statement.ConnPool); t != nil {
		err = t.explain(err)
	}
	return o.error(err)
}

package gormlock

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

const (
	maxOnceKey    = 512
	maxOnceResult = 16 << 20
)

var (
	// ErrMismatch says that [Once] was called with a key it has done already, and with another [Fingerprint].
	ErrMismatch = errors.New("the key was used for something else")
	// ErrUnfinished says that a run of [Once] was committed in its middle, as by DDL on MySQL, and left no result:
	// what it did is not known, and it does not run again.
	ErrUnfinished = errors.New("an earlier run was committed without a result")

	errReplayed = errors.New("done before")
)

// once is one call of Once.
type once struct {
	guard
	name    string
	dialect dialect
	attempt []byte // which run a row is of
}

// Once runs fn in a transaction that is committed at most once for key, and returns its result, also to all who call it
// with that key later: fn does not run for them. The result is stored, as JSON, in the same transaction as what fn
// writes, so it does not matter whether the process dies before it can answer, or what Redis forgets.
//
//	receipt, err := gormlock.Once(ctx, db, gormlock.ClaimKey(ctx, "pay"), func(tx *gorm.DB) (Receipt, error) { … })
//
// It holds the lock on key, as [Transaction] does, so that callers wait for each other in line and not in the database;
// what makes it once is a row with the key in the table onelane_once (see [Migrate]), its first statement. If fn fails
// or panics nothing is stored, and the next call runs it. Where the database rolls the transaction back for the sake of
// others (a deadlock, a serialization failure, a busy SQLite), it is run again, up to ten times in all: so fn should do
// nothing but by tx. The first caller, too, gets the result as it was stored: what does not survive JSON, nobody gets.
//
// The key has 1 to 512 bytes, and is not compared by any collation. It is done for as long as its row is there: see
// [Purge]. It waits for the lock at most [WithWait] (5 s), or until ctx ends. If the lock is not had, as another run
// takes long or Redis is down, it looks whether the key is done, and returns that result; else the error is core's, and
// fn has not run. In an open transaction it is [ErrGuardTooLate]. After [ErrCommitUnknown], call it again with the same
// key to know. Other errors: [ErrMismatch], [ErrUnfinished], and fn's.
func Once[T any](ctx context.Context, db *gorm.DB, key string, fn func(tx *gorm.DB) (T, error), opts ...TransactionOption) (T, error) {
	var result T
	o, err := newOnce(db, key, opts)
	if err != nil {
		return result, err
	}
	stored, err := o.run(ctx, db, func(tx *gorm.DB) ([]byte, error) {
		value, err := fn(tx)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(value)
		switch {
		case err != nil:
			return nil, o.error(fmt.Errorf("the result cannot be stored: %w", err))
		case len(text) > maxOnceResult:
			return nil, o.error(fmt.Errorf("a result of %d bytes is too large, at most %d are allowed", len(text), maxOnceResult))
		}
		var trial T // here, since nobody could read it once it is committed
		if err := json.Unmarshal(text, &trial); err != nil {
			return nil, o.error(fmt.Errorf("the result cannot be read back: %w", err))
		}
		return text, nil
	})
	if err != nil {
		return result, err
	}
	if err := json.Unmarshal(stored, &result); err != nil {
		return result, o.error(fmt.Errorf("the stored result is no %T: %w", result, err))
	}
	return result, nil
}

// ClaimKey is the key of the request's claim (see idempotency.FromContext), for what is to be done once for it: for
// [Once], in a handler behind ginlock or grpclock. The name tells several such things of one request apart. Without a
// claim in ctx it is "", which Once refuses. In Gin ctx is c.Request.Context(), as a *gin.Context does not pass on what that carries.
func ClaimKey(ctx context.Context, name string) string {
	claim, ok := idempotency.FromContext(ctx)
	if !ok {
		return ""
	}
	key := core.Join(name, claim.Key())
	if len(key) > maxOnceKey {
		key = core.Join(name, "sha256", fmt.Sprintf("%x", sha256.Sum256([]byte(claim.Key()))))
	}
	return key
}

func newOnce(db *gorm.DB, key string, opts []TransactionOption) (*once, error) {
	o := &once{guard: guardWith(opts), name: key, attempt: []byte(rand.Text())}
	_, open := transactionOf(db.Statement.ConnPool)
	_, err := registered(db)
	switch d, wrong := dialectOf(db); {
	case err != nil:
	case wrong != nil:
		err = wrong
	case o.err != nil:
		err = o.err
	case o.group != nil:
		err = errors.New("Grouped is an option of Transaction: leave it out")
	case db.Error != nil:
		err = db.Error
	case key == "":
		err = fmt.Errorf("%w: it is empty; ClaimKey returns that where the context has no claim: pass the request's, in Gin c.Request.Context()", core.ErrInvalidKey)
	case len(key) > maxOnceKey:
		return nil, fmt.Errorf("gormlock: Once %q…: %w: it has %d bytes, at most %d are allowed", key[:32], core.ErrInvalidKey, len(key), maxOnceKey)
	case open:
		err = fmt.Errorf("%w: Once needs a transaction of its own; call it outside", ErrGuardTooLate)
	case db.DryRun:
		err = gorm.ErrDryRunModeUnsupported
	default:
		o.dialect = d
		return o, nil
	}
	return nil, o.error(err)
}

func (o *once) error(err error) error { return fmt.Errorf("gormlock: Once %q: %w", o.name, err) }

// run returns what is stored under the key when it returns.
func (o *once) run(ctx context.Context, db *gorm.DB, fn func(tx *gorm.DB) ([]byte, error)) (stored []byte, err error) {
	var entered bool
	alone := o.guard
	alone.retries = 0 // of the runs of Once instead
	err = repeat(ctx, 1+cmp.Or(o.retries, conflictTries-1), repeatable, func() error {
		entered = false
		return alone.transact(db.WithContext(ctx), o.name, func(tx *gorm.DB) error {
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

// withoutLock looks whether the key is done already, when the lock was not had.
func (o *once) withoutLock(ctx context.Context, db *gorm.DB, why error) ([]byte, error) {
	conn := db.Statement.ConnPool
	if o.dialect.name == "mysql" { // whose sessions may be set to read what is not committed, or to stay with what they once read
		tx := unguarded(db.WithContext(ctx)).Begin(&sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
		if tx.Error != nil {
			return nil, fmt.Errorf("%w; and looking whether it is done: %w", why, tx.Error)
		}
		defer tx.Rollback()
		conn = tx.Statement.ConnPool
	}
	stored, err := o.read(ctx, conn, "")
	switch {
	case errors.Is(err, errReplayed):
		return stored, nil
	case err == nil || errors.Is(err, sql.ErrNoRows):
		return nil, why
	case errors.Is(err, ErrMismatch) || errors.Is(err, ErrUnfinished):
		return nil, o.error(err)
	}
	return nil, fmt.Errorf("%w; and looking whether it is done: %w", why, err)
}

// claim makes the row of the key, or returns what is stored in the one that is there, and errReplayed: then there is
// nothing to commit. If the row is of a transaction that is open, the database waits for its end.
func (o *once) claim(tx *gorm.DB) ([]byte, error) {
	ctx, conn := tx.Statement.Context, tx.Statement.ConnPool
	err := begun(tx)
	if err != nil {
		return nil, err
	}
	mark := o.newMark()
	for range 3 {
		_, err = conn.ExecContext(ctx, o.dialect.sql("INSERT INTO onelane_once (name, attempt, fingerprint, created_at) VALUES (?, ?, ?, {now}) {conflict}"),
			[]byte(o.name), o.attempt, mark)
		if err != nil {
			return nil, o.explain(tx, fmt.Errorf("writing to onelane_once, which gormlock.Migrate makes: %w", err))
		}
		var stored []byte
		stored, err = o.read(ctx, conn, "{locking}") // not a snapshot's row, and not affected rows, which drivers count differently
		if err == nil || errors.Is(err, errReplayed) {
			return stored, err
		}
		if !errors.Is(err, sql.ErrNoRows) { // else it was purged in between
			return nil, o.explain(tx, err)
		}
	}
	return nil, o.explain(tx, fmt.Errorf("its row in onelane_once was gone each time it was looked for: does Purge delete what is hardly there? %w", err))
}

// read returns nothing if the row is of this run, and what is stored, and errReplayed, if it is of another.
func (o *once) read(ctx context.Context, conn querier, locking string) ([]byte, error) {
	switch prepared := conn.(type) { // GORM's Row is an empty one where it cannot prepare, and panics
	case *gorm.PreparedStmtDB:
		conn = prepared.ConnPool
	case *gorm.PreparedStmtTX:
		conn = prepared.Tx
	}
	var attempt, mark, result []byte
	err := conn.QueryRowContext(ctx, o.dialect.sql("SELECT attempt, fingerprint, result FROM onelane_once WHERE name = ? "+locking), []byte(o.name)).
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

// store writes the result into the row, which is this run's still.
func (o *once) store(tx *gorm.DB, result []byte) error {
	done, err := tx.Statement.ConnPool.ExecContext(tx.Statement.Context,
		o.dialect.sql("UPDATE onelane_once SET result = ? WHERE name = ? AND attempt = ?"), result, []byte(o.name), o.attempt)
	if err != nil {
		return o.explain(tx, err)
	}
	if n, err := done.RowsAffected(); err != nil || n != 1 {
		return o.error(fmt.Errorf("its row in onelane_once is gone, %d left: was the transaction ended inside? %w", n, errors.Join(err, gorm.ErrInvalidTransaction)))
	}
	return nil
}

// explain says whose error it is, and that the lock was lost if that is why.
func (o *once) explain(tx *gorm.DB, err error) error {
	if t, _ := transactionOf(tx.Statement.ConnPool); t != nil {
		err = t.explain(err)
	}
	return o.error(err)
}

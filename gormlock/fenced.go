package gormlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/sqltable"
)

// ErrFenced means that the fence of [Fenced] refused a transaction: another holder of the key, with
// a larger token, has registered in the database. The error also matches core.ErrLost.
var ErrFenced = errors.New("fenced off")

// Fenced lets the database check that the lock is still the newest one. The transaction first
// registers the fencing token of each of its locks in the table onelane_fences (see [Migrate]), and
// holds that row to its end. A token must be larger than all tokens that registered before, or
// belong to the same lock. Otherwise the transaction is rolled back, with an error that matches
// [ErrFenced] and core.ErrLost.
//
// So a holder that lost its lock without noticing does not write, and reads nothing that others
// change before its transaction ends. The price is one row per key and two statements.
//
//   - Every writer of what the key guards must be fenced. A read before the transaction, under the
//     same lock, is safe too.
//   - Several transactions may use one lock, one after the other. A second one that is opened
//     inside the first waits for the first, and so for itself.
//   - While the transaction of an earlier holder is open, its successor waits for the row, at most
//     [WithWait]. After that the error matches core.ErrTaken.
//   - A read-only transaction cannot register and fails with an error.
//   - If guards are combined and one is fenced, all are. As an option of [New], Fenced is the
//     default for all guards.
//   - The fence of a key does not contain the prefix of the Locker, so services with different
//     prefixes share the fences of one database. If a key names different things in them, choose
//     different keys.
//   - If the source of tokens changes, docs/operations.md says what to do with the table
//     onelane_fences.
//
// Source: Martin Kleppmann, "How to do distributed locking", 2016, with the check moved to before
// the first read.
func Fenced() GuardOption {
	return guardOption(func(g *guard) { g.fenced = true })
}

var errFenceHeld = fmt.Errorf("an earlier holder's transaction, which has the fence, is still open: %w", core.ErrTaken)

// registerLocked registers the locks in the transaction that has just begun. ctx ends with a lock.
func (t *transaction) registerLocked(ctx context.Context) error {
	if t.opts != nil && t.opts.ReadOnly {
		return guardError(t.held.demand.keys, fmt.Errorf("a read-only transaction cannot be fenced: %w", gorm.ErrInvalidTransaction))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer time.AfterFunc(t.held.demand.wait, func() { cancel(errFenceHeld) }).Stop()
	for _, k := range t.held.locks {
		err := registerToken(ctx, t.real, t.pool.dialect, k)
		if err == nil {
			continue
		}
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		} else if lockWaitTimedOut(err) { // the database's own limit is shorter than ours
			err = fmt.Errorf("%w: %w", errFenceHeld, err)
		}
		return guardError([]string{k.Key()}, err)
	}
	return nil
}

// The token is read back, because drivers may count found rows as affected. MySQL assigns from left
// to right, so the token is last.
const (
	registerMySQL = `INSERT INTO onelane_fences (name, token, owner, registered_at) VALUES (?, ?, ?, {now})
ON DUPLICATE KEY UPDATE registered_at = VALUES(registered_at),
owner = IF(VALUES(token) > token, VALUES(owner), owner), token = GREATEST(token, VALUES(token))`
	registerOthers = `INSERT INTO onelane_fences (name, token, owner, registered_at) VALUES (?, ?, ?, {now})
ON CONFLICT (name) DO UPDATE SET registered_at = excluded.registered_at,
owner = CASE WHEN excluded.token > onelane_fences.token THEN excluded.owner ELSE onelane_fences.owner END,
token = {greatest}(onelane_fences.token, excluded.token)`
	fenceOf = `SELECT token, owner FROM onelane_fences WHERE name = ? {locking}`
)

// registerToken puts the token of a lock into its row, unless a larger one is there, and keeps the
// row locked.
func registerToken(ctx context.Context, q gorm.ConnPool, d sqltable.Dialect, k *core.Lock) error {
	fence, err := k.Token(ctx)
	if err != nil {
		return err
	}
	if fence > math.MaxInt64 {
		return fmt.Errorf("token %d is larger than the database's largest number", fence)
	}
	upsert := registerOthers
	if d.Name == "mysql" {
		upsert = registerMySQL
	}
	name, token, owner := []byte(k.Key()), int64(fence), []byte(k.Owner())
	if _, err := q.ExecContext(ctx, d.SQL(upsert), name, token, owner); err != nil {
		return fmt.Errorf("registering in onelane_fences, which gormlock.Migrate makes: %w", err)
	}
	var newest int64
	var by []byte
	if err := q.QueryRowContext(ctx, d.SQL(fenceOf), name).Scan(&newest, &by); err != nil {
		return fmt.Errorf("reading onelane_fences: %w", err)
	}
	if newest != token || !bytes.Equal(by, owner) {
		return fmt.Errorf("%w: token %d of %s is not larger than %d of %s, which registered before; the transaction is rolled back: %w",
			ErrFenced, token, owner, newest, by, core.ErrLost)
	}
	return nil
}

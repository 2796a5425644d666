package gormlock

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
)

// DecrementOption configures one [Decrement]. A nil option is ignored, and the later of two wins.
type DecrementOption interface{ applyDecrement(*sellOut) }

type decrementOption func(*sellOut)

func (o decrementOption) applyDecrement(s *sellOut) { o(s) }

const (
	minSeal  = 10 * time.Millisecond     // core's limits
	maxSeal  = 10 * 365 * 24 * time.Hour // core's limits
	sealTime = time.Second               // for reading and sealing, while the caller waits
)

// soldOut is the value that SealWhenOut leaves under a key.
var soldOut = []byte("onelane: sold out")

// SealWhenOut seals the guard's key for ttl when nothing is left, so later buyers are turned away
// before they reach the database. Every caller that wants the key, in any process, gets an error
// that matches [ErrInsufficient] and core.ErrSealed. It costs one round trip and no SQL, and with
// [RememberSeals] often no round trip.
//
// If Decrement found too little, the row is read once more, after the outcome of the transaction is
// known and while the lock is held. It is read from the primary, except behind Pgpool-II, and only
// what is committed counts. The key is sealed if the row is there and has 0 or less. It is not
// sealed if a caller asked for 5 and 3 are left. A missing row, a rolled-back decrement and a lost
// lock seal nothing either. A failure to read or to seal is logged and changes nothing else.
//
// SealWhenOut needs a guard with one key, that of the row: "stock:42" for the stock of 42. A lock
// that the context carries from outside is not sealed. In a [Once], SealWhenOut is an error: the
// key names an effect, not a row. The ttl is 10 ms to ten years; it bounds a seal that nobody takes
// away. To sell again, put the stock back under a guard with [Reopen].
func SealWhenOut(ttl time.Duration) DecrementOption {
	return decrementOption(func(s *sellOut) {
		s.ttl, s.err = ttl, nil
		if ttl < minSeal || ttl > maxSeal {
			s.err = fmt.Errorf("SealWhenOut(%v): the time must be from %v to %v", ttl, minSeal, maxSeal)
		}
	})
}

// sellOut is a Decrement that seals when nothing is left.
type sellOut struct {
	ttl time.Duration
	err error

	decrement *decrement

	// The SELECT that finds out what is left, and its arguments.
	query string
	args  []any
}

// sellOutWith returns what the options of a Decrement ask for, or nil.
func sellOutWith(db *gorm.DB, opts []DecrementOption) (*sellOut, error) {
	var s sellOut
	for _, o := range opts {
		if o != nil {
			o.applyDecrement(&s)
		}
	}
	if s.err != nil || s.ttl == 0 {
		return nil, s.err
	}
	_, err := registered(db)
	return &s, err
}

// sellOutKey is where a sellOut is in the settings of a statement, which GORM copies to those of
// associations.
type sellOutKey struct{ *gorm.Statement }

func sellOutOf(s *gorm.Statement) *sellOut {
	v, _ := s.Settings.Load(sellOutKey{s})
	found, _ := v.(*sellOut)
	return found
}

var errSealNeedsGuard = errors.New("gormlock: SealWhenOut needs a guard with one key, that of the row: " +
	"put db.Scopes(gormlock.Guard(key)) before the decrement, or use gormlock.Transaction; in a Once, omit SealWhenOut")

// sealable returns an error if the statement's guard cannot be sealed.
func (t *transaction) sealable() error {
	if !t.guarded() {
		return errSealNeedsGuard
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.locks) != 1 || t.effect { // a key that was asked for twice is one lock
		return errSealNeedsGuard
	}
	return nil
}

// sellsOut notes that a statement found too little. The last one counts.
func (t *transaction) sellsOut(s *sellOut) {
	s.prepare()
	if t.turn != nil {
		t = t.turn.group.t
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sellOut = s
}

// seal seals the key if nothing is left. The outcome of the transaction is known; t.mu is held.
func (t *transaction) seal() {
	s := t.sellOut
	if s == nil || !s.decrement.sent || t.reentered || len(t.locks) != 1 || t.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(t.ctx, sealTime)
	defer cancel()
	out, err := false, s.err
	if err == nil {
		out, err = s.out(ctx, t.pool)
	}
	if err == nil && out {
		err = t.sealNow(ctx, s)
	}
	if err != nil && !errors.Is(err, core.ErrLost) {
		t.pool.log.Warn(t.ctx, "gormlock: key %s could not be sealed as sold out; buyers go on to ask the database: %v", quoted(t.keys), err)
	}
}

// sealNow seals the key, and reads the row once more. A writer without the guard may have put stock
// back and unsealed the key just before the seal came.
func (t *transaction) sealNow(ctx context.Context, s *sellOut) error {
	sealed := t.locks[0].Seal(ctx, soldOut, s.ttl)
	if errors.Is(sealed, core.ErrLost) || errors.Is(sealed, core.ErrReleased) {
		return sealed // after any other error the key may be sealed
	}
	out, err := s.out(ctx, t.pool)
	if err == nil && out {
		return sealed
	}
	locker, lockerErr := t.pool.plugin.lockerInUse()
	if lockerErr != nil {
		return errors.Join(sealed, err, lockerErr)
	}
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), sealTime)
	defer cancel()
	defer t.pool.plugin.seals.forget(locker, t.keys[0])
	return errors.Join(sealed, err, locker.Unseal(detached, t.keys[0]))
}

// prepare builds the SELECT for out before the caller goes on and may change the arguments. A panic
// in a callback of the query is an error.
func (s *sellOut) prepare() {
	if !s.decrement.sent { // another statement was sent instead
		return
	}
	defer func() {
		if p := recover(); p != nil {
			s.err = fmt.Errorf("panic: %v", p)
		}
	}()
	update := s.decrement.statement
	built := s.decrement.pluck(update.DB.Session(&gorm.Session{NewDB: true,
		Context: withoutGuards(update.Context), SkipHooks: true, DryRun: true}), &[]float64{})
	s.err, s.query, s.args = built.Error, built.Statement.SQL.String(), slices.Clone(built.Statement.Vars)
	for i, v := range s.args {
		s.args[i] = frozen(v)
	}
}

// frozen returns what a driver sends for an argument, as it is now.
func frozen(v any) any {
	if value, err := driver.DefaultParameterConverter.ConvertValue(v); err == nil {
		v = value
	}
	switch v := v.(type) {
	case []byte:
		return bytes.Clone(v)
	case string:
		return strings.Clone(v)
	}
	return v
}

// out reads whether the row is there and has nothing left. It reads in a transaction of its own,
// for which dbresolver chooses the primary, and only what is committed.
func (s *sellOut) out(ctx context.Context, p *pool) (yes bool, err error) {
	conn := &transaction{pool: p, ctx: withoutGuards(ctx)}
	if p.dialect.name == "mysql" { // whose sessions may be set to read what is not committed
		conn.opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	defer func() { _ = conn.Rollback() }()
	rows, err := conn.QueryContext(conn.ctx, s.query, s.args...)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var left float64 // NULL is an error
		if err := rows.Scan(&left); err != nil || left > 0 {
			return false, err
		}
		yes = true
	}
	return yes, rows.Err()
}

// insufficient makes err match ErrInsufficient if it says that SealWhenOut sealed the key.
func insufficient(err error) error {
	if _, ok := isSoldOut(err); ok {
		return &soldOutError{err}
	}
	return err
}

// isSoldOut returns the key that SealWhenOut sealed, if err says so.
func isSoldOut(err error) (key string, ok bool) {
	sealed, ok := errors.AsType[*core.SealedError](err)
	if !ok || !bytes.Equal(sealed.Value, soldOut) {
		return "", false
	}
	return sealed.Key, true
}

// soldOutError is the error of a key that SealWhenOut sealed.
type soldOutError struct{ sealed error }

func (e *soldOutError) Error() string        { return ErrInsufficient.Error() + ": " + e.sealed.Error() }
func (e *soldOutError) Is(target error) bool { return target == ErrInsufficient }
func (e *soldOutError) Unwrap() error        { return e.sealed }

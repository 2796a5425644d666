package gormlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
)

// DecrementOption configures one [Decrement]. A nil one is ignored, the later of two wins.
type DecrementOption interface{ applyDecrement(*sellOut) }

type decrementOption func(*sellOut)

func (o decrementOption) applyDecrement(s *sellOut) { o(s) }

const (
	minSeal  = 10 * time.Millisecond     // as core has it
	maxSeal  = 10 * 365 * 24 * time.Hour // the same
	sealTime = time.Second               // for looking and sealing, while the caller waits
)

// soldOut is what a key is sealed with.
var soldOut = []byte("onelane: sold out")

// SealWhenOut seals the guard's key for ttl when nothing is left, so that later buyers are turned away before they reach
// the database: whoever wants the key, in any process, gets an error that matches [ErrInsufficient] and
// core.ErrSealed, in one round trip and without SQL; with [RememberSeals] not even that.
//
// It happens when Decrement found too little: then the row is read once more, on the primary, when the outcome of the
// transaction is known and the lock is still held, and the key is sealed if the row is there and has 0 or less.
// Asking for 5 of 3, a row that is missing and a decrement that was rolled back seal nothing, and neither does a lock that
// was lost. A failure to read or to seal is logged and changes nothing else.
//
// It needs a guard with one key, that of the row: "stock:42" for the stock of 42. A lock that the context carries from
// outside is not sealed. To sell again, write the new stock first, without the guard, then call core.Locker.Unseal: it
// works at once or, if seals are remembered, within that time. A seal that came between
// the two is taken back by who made it, who looks once more after sealing. The ttl is 10 ms to ten years; it bounds
// how long a seal stays that nobody takes away.
func SealWhenOut(ttl time.Duration) DecrementOption {
	return decrementOption(func(s *sellOut) {
		s.ttl, s.err = ttl, nil
		if ttl < minSeal || ttl > maxSeal {
			s.err = fmt.Errorf("SealWhenOut(%v): it must be at least %v and at most %v", ttl, minSeal, maxSeal)
		}
	})
}

// sellOut is a Decrement that seals when nothing is left.
type sellOut struct {
	ttl time.Duration
	err error

	db        *gorm.DB // that the UPDATE ran on, and what it selected
	model     any      // an empty one: that of the UPDATE is the caller's, who goes on with it
	table     string
	tableExpr *clause.Expr
	unscoped  bool
	where     []clause.Expression
	left      string
}

// selecting returns s with what an UPDATE selects.
func (s sellOut) selecting(update *gorm.Statement, where []clause.Expression, column string) *sellOut {
	s.db, s.where, s.left = update.DB, slices.Clone(where), column
	s.table, s.tableExpr, s.unscoped = update.Table, update.TableExpr, update.Unscoped
	for name, value := range primaryKey(update) {
		s.where = append(s.where, clause.Eq{Column: clause.Column{Table: clause.CurrentTable, Name: name}, Value: value})
	}
	parsed := &gorm.Statement{DB: update.DB}
	if update.Model != nil && parsed.Parse(update.Model) == nil {
		s.model = reflect.New(parsed.Schema.ModelType).Interface()
	}
	return &s
}

// sellOutWith returns what the options of a Decrement ask for; nil where that is nothing.
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

type sellOutKey struct{ *gorm.Statement } // in its settings, which GORM copies to those of associations

func sellOutOf(s *gorm.Statement) *sellOut {
	v, _ := s.Settings.Load(sellOutKey{s})
	found, _ := v.(*sellOut)
	return found
}

var errSealNeedsGuard = errors.New("gormlock: SealWhenOut seals the key of the guard, which must be one: put db.Scopes(gormlock.Guard(key)) before the decrement, or use gormlock.Transaction")

// sealable says whether the statement's guard can be sealed.
func (t *transaction) sealable() error {
	if !t.guarded() {
		return errSealNeedsGuard
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.locks) != 1 { // a key that was asked for twice is one lock
		return errSealNeedsGuard
	}
	return nil
}

// sellsOut notes that a statement found too little; the last one counts.
func (t *transaction) sellsOut(s *sellOut) {
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
	if s == nil || t.reentered || len(t.locks) != 1 || t.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(t.ctx, sealTime)
	defer cancel()
	out, err := s.out(ctx, t.pool)
	if err == nil && out {
		err = t.sealNow(ctx, s)
	}
	if err != nil && !errors.Is(err, core.ErrLost) {
		t.pool.log.Warn(t.ctx, "gormlock: sealing %s, of which nothing is left: %v", quoted(t.keys), err)
	}
}

// sealNow seals, and looks once more: who restocks writes first and unseals then, and the seal may have come in between.
func (t *transaction) sealNow(ctx context.Context, s *sellOut) error {
	sealed := t.locks[0].Seal(ctx, soldOut, s.ttl)
	if errors.Is(sealed, core.ErrLost) || errors.Is(sealed, core.ErrReleased) {
		return sealed // nothing was sealed; after any other error that is not known
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

// out reads, in a transaction of its own, whether the rows are there and have nothing left. In a transaction dbresolver
// does not choose a replica, which may lag behind. A panic in a callback of the query is an error, as the lock is still to
// be released, and a group has no caller who could recover.
func (s *sellOut) out(ctx context.Context, p *pool) (yes bool, err error) {
	ctx = withoutGuards(ctx)
	conn := &transaction{pool: p, ctx: ctx}
	defer func() {
		_ = conn.Rollback()
		if p := recover(); p != nil {
			yes, err = false, fmt.Errorf("panic: %v", p)
		}
	}()
	q := s.db.Session(&gorm.Session{NewDB: true, Context: ctx, SkipHooks: true}).Model(s.model)
	q.Statement.ConnPool = conn
	q.Statement.Table, q.Statement.TableExpr, q.Statement.Unscoped = s.table, s.tableExpr, s.unscoped
	if len(s.where) > 0 {
		q = q.Clauses(clause.Where{Exprs: s.where})
	}
	var left []float64 // NULL is an error
	if err := q.Pluck(s.left, &left).Error; err != nil {
		return false, err
	}
	for _, n := range left {
		if n > 0 {
			return false, nil
		}
	}
	return len(left) > 0, nil
}

// primaryKey returns the columns of the model's primary key that have a value, which GORM adds to an UPDATE.
func primaryKey(s *gorm.Statement) map[string]any {
	model := reflect.ValueOf(s.Model)
	for model.Kind() == reflect.Pointer && !model.IsNil() {
		model = model.Elem()
	}
	parsed := &gorm.Statement{DB: s.DB}
	if model.Kind() != reflect.Struct || parsed.Parse(s.Model) != nil {
		return nil
	}
	key := make(map[string]any)
	for _, f := range parsed.Schema.PrimaryFields {
		if value, zero := f.ValueOf(s.Context, model); !zero {
			key[f.DBName] = value
		}
	}
	return key
}

// insufficient adds to the error of a guard that its key is sealed because nothing is left, if it is so.
func insufficient(err error) error {
	if sealed, ok := errors.AsType[*core.SealedError](err); ok && bytes.Equal(sealed.Value, soldOut) {
		return &soldOutError{err}
	}
	return err
}

// soldOutError is that of a sealed key of which nothing is left.
type soldOutError struct{ sealed error }

func (e *soldOutError) Error() string        { return ErrInsufficient.Error() + ": " + e.sealed.Error() }
func (e *soldOutError) Is(target error) bool { return target == ErrInsufficient }
func (e *soldOutError) Unwrap() error        { return e.sealed }

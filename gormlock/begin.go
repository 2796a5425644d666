package gormlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/onelane/onelane/internal/sqltable"
	"github.com/onelane/onelane/internal/undone"
)

// beginLocked begins in the database. Under locks database/sql does not see the end of t.ctx. It
// would roll back by itself, and the locks could be released before that is done. abort rolls back
// instead.
func (t *transaction) beginLocked(statement context.Context) error {
	if !t.state().holds() {
		return t.sendBeginLocked(t.ctx)
	}
	// Another plugin may have put its pool around ours. Then BEGIN comes back to BeginTx.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(withoutGuards(t.ctx)))
	t.held.interrupt = func() { cancel(nil) }
	stop := t.cancelIfEndedLocked(statement, cancel)
	err := t.sendBeginLocked(ctx)
	begun := err == nil
	if begun && t.held.demand.fenced {
		if err = t.fenceLocked(ctx); errors.Is(err, ErrFenced) {
			t.pool.plugin.instruments().refusals.Add(ctx, 1)
		}
	}
	stop()
	if ended := t.ctx.Err(); ended != nil {
		err = errors.Join(ended, err)
	} else if ended := context.Cause(ctx); ended != nil && !(begun && errors.Is(err, ended)) { // the fence names the keys
		if err != nil && !errors.Is(err, context.Canceled) { // BEGIN may have succeeded at that moment
			ended = fmt.Errorf("%w: %w", ended, err)
		}
		err = guardError(t.held.demand.keys, ended)
	}
	return undone.Mark(err)
}

// cancelIfEndedLocked cancels BEGIN and the fence when a lock or a context ends: they may wait, and
// abort waits for them. After stop it is certain whether they were canceled.
func (t *transaction) cancelIfEndedLocked(statement context.Context, cancel context.CancelCauseFunc) (stop func()) {
	ends := append(make([]context.Context, 0, 3), t.ctx)
	if statement.Done() != t.ctx.Done() {
		ends = append(ends, statement)
	}
	for _, k := range t.held.locks {
		ends = append(ends, k.Context())
	}
	stops := make([]func() bool, len(ends))
	for i, end := range ends {
		stops[i] = context.AfterFunc(end, func() { cancel(context.Cause(end)) })
	}
	return func() {
		for i, stop := range stops {
			if !stop() {
				cancel(context.Cause(ends[i]))
			}
		}
	}
}

// sendBeginLocked sends BEGIN, or a new one after a ROLLBACK.
func (t *transaction) sendBeginLocked(ctx context.Context) (err error) {
	t.real, err = t.pool.begin(ctx, t.opts, t.state().holds())
	if err == nil {
		t.moveLocked(eventBegun, nil)
	}
	return err
}

// fenceLocked registers the locks. Nothing else was sent in the transaction, so after a conflict it
// begins once more.
func (t *transaction) fenceLocked(ctx context.Context) error {
	again := false
	return sqltable.Retry(ctx, func() (err error) {
		if again {
			t.pool.plugin.instruments().retries.Add(ctx, 1)
			_ = t.real.Rollback()
			if err = t.sendBeginLocked(ctx); err != nil {
				return err
			}
		}
		again = true
		return t.registerLocked(ctx)
	})
}

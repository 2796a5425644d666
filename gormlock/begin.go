package gormlock

import (
	"cmp"
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
	// Another plugin may have put its pool around this one's. Then BEGIN comes back to BeginTx.
	ctx, cancel := context.WithCancel(context.WithoutCancel(withoutGuards(t.ctx)))
	t.interrupt = cancel
	stop := context.AfterFunc(t.ctx, cancel)
	wanted := t.whileWantedLocked(statement, cancel)
	err := wanted(t.sendBeginLocked(ctx))
	if err == nil && t.demand.fenced {
		if err = t.fenceLocked(ctx); errors.Is(err, ErrFenced) {
			t.pool.plugin.instruments().refusals.Add(ctx, 1)
		}
	}
	stop()
	if t.ctx.Err() != nil {
		err = errors.Join(t.ctx.Err(), err)
	}
	return undone.Mark(err)
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

// whileWantedLocked gives up BEGIN when a lock or the context of its statement ends: BEGIN may wait
// for a connection, and abort waits for BEGIN. The returned function stops that and adds the reason
// to BEGIN's error. The end of t.ctx, which may end the others too, is left to beginLocked.
func (t *transaction) whileWantedLocked(statement context.Context, giveUp func()) func(error) error {
	ends := make([]context.Context, 0, 2)
	for _, k := range t.locks {
		ends = append(ends, k.Context())
	}
	if statement.Done() != t.ctx.Done() {
		ends = append(ends, statement)
	}
	stops := make([]func() bool, len(ends))
	for i, end := range ends {
		stops[i] = context.AfterFunc(end, giveUp)
	}
	return func(err error) error {
		var ended error
		for i, stop := range stops {
			if !stop() && ended == nil && t.ctx.Err() == nil {
				ended = fmt.Errorf("%w: while BEGIN waited for a connection", context.Cause(ends[i]))
				if err != nil { // BEGIN may have succeeded at that moment
					ended = fmt.Errorf("%w: %v", ended, err)
				}
				ended = guardError(t.demand.keys, ended)
			}
		}
		return cmp.Or(ended, err)
	}
}

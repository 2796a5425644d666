package gormlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
)

// begin sends BEGIN. Under a guard database/sql is not told of the end of t.ctx: it would roll back on its own, and
// nobody could wait for that before the locks are released; abort does it. t.mu is held.
func (t *transaction) begin(statement context.Context) (err error) {
	if len(t.locks) == 0 {
		t.real, err = t.pool.begin(t.ctx, t.opts, false)
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.ctx))
	t.interrupt, t.cancel = cancel, append(t.cancel, func(error) { cancel() })
	stop := context.AfterFunc(t.ctx, cancel)
	wanted := t.whileWanted(statement, cancel)
	t.real, err = t.pool.begin(ctx, t.opts, true)
	if err = wanted(err); err == nil && t.fenced {
		if err = t.beginFenced(ctx); errors.Is(err, ErrFenced) {
			t.pool.plugin.telemetry.fenceRefused(ctx)
		}
	}
	stop()
	switch {
	case t.ctx.Err() == nil:
	case errors.Is(context.Cause(t.ctx), errGroupTime):
		err = guardError(t.keys, fmt.Errorf("%w: there was no connection, or no fence: %v", context.Cause(t.ctx), err))
	default:
		err = errors.Join(t.ctx.Err(), err)
	}
	return err
}

// whileWanted gives up BEGIN, which may wait for a connection and keeps abort waiting, when a lock or the statement that it
// is for ends. What it returns stops that, and makes of BEGIN's error why it was given up; the end of t.ctx, which may be
// the end of these too, is left to begin. t.mu is held.
func (t *transaction) whileWanted(statement context.Context, giveUp func()) func(error) error {
	ends := make([]context.Context, 0, 2)
	for _, k := range t.locks {
		ends = append(ends, k.Context())
	}
	ends = append(ends, statement)
	stops := make([]func() bool, len(ends))
	for i, end := range ends {
		stops[i] = context.AfterFunc(end, giveUp)
	}
	return func(err error) error {
		var ended error
		for i, stop := range stops {
			if !stop() && ended == nil && t.ctx.Err() == nil {
				ended = fmt.Errorf("%w: while BEGIN waited for a connection", context.Cause(ends[i]))
				if err != nil { // it may have had one at that moment
					ended = fmt.Errorf("%w: %v", ended, err)
				}
				ended = guardError(t.keys, ended)
			}
		}
		return cmp.Or(ended, err)
	}
}

package gormlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/onelane/onelane/internal/undone"
)

// begin sends BEGIN. Under a guard database/sql does not see the end of t.ctx. It would roll back
// by itself, and the locks could be released before that is done. abort rolls back instead. t.mu is
// held.
func (t *transaction) begin(statement context.Context) (err error) {
	if len(t.locks) == 0 {
		t.real, err = t.pool.begin(t.ctx, t.opts, false)
		return err
	}
	// Another plugin may have put its pool around this one's. Then BEGIN comes back to BeginTx.
	ctx, cancel := context.WithCancel(context.WithoutCancel(withoutGuards(t.ctx)))
	t.interrupt, t.cancel = cancel, append(t.cancel, func(error) { cancel() })
	stop := context.AfterFunc(t.ctx, cancel)
	wanted := t.whileWanted(statement, cancel)
	t.real, err = t.pool.begin(ctx, t.opts, true)
	if err = wanted(err); err == nil && t.fenced {
		if err = t.beginFenced(ctx); errors.Is(err, ErrFenced) {
			t.pool.plugin.instruments().refusals.Add(ctx, 1)
		}
	}
	stop()
	if t.ctx.Err() != nil {
		err = errors.Join(t.ctx.Err(), err)
	}
	return undone.Mark(err)
}

// whileWanted gives up BEGIN when a lock or the context of its statement ends: BEGIN may wait for a
// connection, and abort waits for BEGIN. The returned function stops that and adds the reason to
// BEGIN's error. The end of t.ctx, which may end the others too, is left to begin. t.mu is held.
func (t *transaction) whileWanted(statement context.Context, giveUp func()) func(error) error {
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
				ended = guardError(t.keys, ended)
			}
		}
		return cmp.Or(ended, err)
	}
}

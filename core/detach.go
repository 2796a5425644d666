package core

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// releaseGrace is how long a release works if its context is done or ends sooner.
const releaseGrace = 100 * time.Millisecond

// detach returns a context for clean-up. It does not end with ctx, but keeps ctx's deadline if that
// is at least releaseGrace away.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	switch {
	case ctx.Done() == nil:
		return ctx, func() {}
	case ctx.Err() == nil && !ok:
		return context.WithoutCancel(ctx), func() {}
	}
	if soonest := time.Now().Add(releaseGrace); ctx.Err() != nil || deadline.Before(soonest) {
		deadline = soonest
	}
	d := &detached{Context: context.WithoutCancel(ctx), end: deadline}
	return d, d.cancel
}

// detached is like a context of [context.WithDeadline], but makes a timer only if somebody waits for
// its end. Most releases are over long before that.
type detached struct {
	context.Context // never ends
	end             time.Time

	mu    sync.Mutex
	over  bool            // canceled
	timed context.Context // nil before somebody waits
	stop  context.CancelFunc
}

// Deadline implements [context.Context].
func (d *detached) Deadline() (time.Time, bool) { return d.end, true }

// Done implements [context.Context].
func (d *detached) Done() <-chan struct{} { return d.withTimer().Done() }

// Err implements [context.Context].
func (d *detached) Err() error {
	d.mu.Lock()
	quiet := d.timed == nil && !d.over && time.Now().Before(d.end)
	d.mu.Unlock()
	if quiet {
		return nil
	}
	return d.withTimer().Err()
}

// Value implements [context.Context]. With a timer, package context finds it here, for the children.
func (d *detached) Value(key any) any {
	d.mu.Lock()
	timed := d.timed
	d.mu.Unlock()
	if timed != nil {
		return timed.Value(key)
	}
	return d.Context.Value(key)
}

// String implements [fmt.Stringer]. Package fmt would read the fields while others write them.
func (d *detached) String() string { return fmt.Sprintf("%v.detached(%v)", d.Context, d.end) }

func (d *detached) withTimer() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.timed != nil:
	case d.over:
		d.timed, d.stop = context.WithCancel(d.Context)
		d.stop()
	default:
		d.timed, d.stop = context.WithDeadline(d.Context, d.end)
	}
	return d.timed
}

func (d *detached) cancel() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over = true; d.stop != nil {
		d.stop()
	}
}

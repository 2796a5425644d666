package redisbackend

import (
	"context"
	"sync/atomic"
	"time"
)

// limitParts is in how many parts of a time-out calls have the same limit.
const limitParts = 16

// limits bounds calls by a context that the calls of a moment share. A timer for each call would be
// a sixth of its CPU time.
type limits struct{ last atomic.Pointer[limit] }

// bound returns a context that ends after timeout, or a sixteenth of it later, or with ctx's
// deadline. It does not end if ctx is canceled later.
func (l *limits) bound(ctx context.Context, now time.Time, timeout time.Duration) context.Context {
	end := now.Add(timeout)
	latest := end.Add(timeout / limitParts)
	if deadline, ok := ctx.Deadline(); ctx.Err() != nil || ok && deadline.Before(latest) {
		return ctx
	}
	shared := l.last.Load()
	if shared == nil || shared.end.Before(end) || shared.end.After(latest) {
		shared = &limit{end: latest}
		shared.Context, shared.cancel = context.WithDeadline(context.Background(), latest)
		l.last.Store(shared)
	}
	return shared.Context
}

// limit is a context of the calls of a moment.
type limit struct {
	context.Context
	end    time.Time
	cancel context.CancelFunc // never called: the calls that have it may run until its end
}

package redisbackend

import (
	"context"
	"sync/atomic"
	"time"
)

// limitParts is in how many parts of a time-out calls have the same limit.
const limitParts = 16

// limits bounds calls by a context that the calls of a moment share: a timer for each call would be a
// sixth of its CPU time.
type limits struct{ last atomic.Pointer[limit] }

// bound returns a context that ends after timeout, or a sixteenth of it later, or with ctx's deadline.
// It does not end if ctx is canceled later.
func (l *limits) bound(ctx context.Context, now time.Time, timeout time.Duration) context.Context {
	end := now.Add(timeout)
	latest := end.Add(timeout / limitParts)
	if deadline, ok := ctx.Deadline(); ctx.Err() != nil || ok && deadline.Before(latest) {
		return ctx
	}
	shared := l.last.Load()
	if shared == nil || shared.end.Before(end) || shared.end.After(latest) {
		shared = &limit{end: latest, done: make(chan struct{})}
		time.AfterFunc(latest.Sub(now), func() { close(shared.done) })
		l.last.Store(shared)
	}
	return shared
}

// limit is a context with a deadline.
type limit struct {
	end  time.Time
	done chan struct{}
}

func (l *limit) Deadline() (time.Time, bool) { return l.end, true }
func (l *limit) Done() <-chan struct{}       { return l.done }
func (l *limit) Value(any) any               { return nil }

func (l *limit) Err() error {
	select {
	case <-l.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onelane/onelane/internal/undone"
)

// contextError returns ctx's error. It also notices a deadline that passed before ctx's timer
// fired.
func contextError(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// endedError says that the caller's context ended a call. It matches the context's error and never
// [ErrUnavailable]: the end of a context says nothing about the backend.
type endedError struct {
	key    string
	ended  error  // the context's error, or a causedError
	detail string // the cause and the backend's answer
}

func (e *endedError) Error() string {
	if e.key == "" {
		return "core: the caller's context ended: " + e.detail
	}
	return fmt.Sprintf("core: key %q: the caller's context ended: %s", e.key, e.detail)
}

func (e *endedError) Unwrap() error { return e.ended }

// causedError is the error of a context that ended for a cause, and shows the cause.
type causedError struct {
	shows   error
	matches []error
}

func (e *causedError) Error() string { return e.shows.Error() }

func (e *causedError) Unwrap() []error { return e.matches }

// endOf returns the error of a context that has ended, or nil. It matches the context's error and
// its cause. A cause that is an answer about another key is not matched: an errgroup cancels with
// the first error.
func endOf(ctx context.Context) error {
	ended, cause := contextError(ctx), context.Cause(ctx)
	if cause == nil || cause == ended {
		return ended
	}
	for _, answer := range []error{ErrTaken, ErrSealed, ErrOrphaned, ErrUnavailable, ErrInvalidKey, ErrReleased, ErrClosed, ErrNoSeals} {
		if errors.Is(cause, answer) {
			return &causedError{cause, []error{ended}}
		}
	}
	return &causedError{cause, []error{ended, cause}}
}

// notAsked returns the error of a call whose context was done before the call was made.
func notAsked(ctx context.Context, key string) error {
	ended := endOf(ctx)
	return &endedError{key: key, ended: ended, detail: ended.Error()}
}

// acquireError is callerError for a call that acquires keys. Its error also matches the cause of the
// end of the caller's context. Other calls must not match it: a Seal that matches [ErrLost] has
// sealed nothing.
func acquireError(caller context.Context, key string, err error) error {
	theirs := callerError(caller, key, err)
	if e, ok := theirs.(*endedError); ok && e != err {
		e.ended = endOf(caller)
	}
	if _, ok := theirs.(*UnavailableError); ok {
		return undone.Mark(theirs) // a Release or a Seal may fail after the work under the lock
	}
	return theirs
}

// callerError maps a backend's error to the error that the caller sees. A call that the caller's
// context ended matches that context's error. A call that a time-out of ours ended matches no
// context's error.
func callerError(caller context.Context, key string, err error) error {
	u, ok := err.(*UnavailableError)
	if !ok {
		return err
	}
	if ended := contextError(caller); ended != nil {
		why := ended
		if cause := context.Cause(caller); cause != nil {
			why = cause
		}
		causes := strings.TrimPrefix(u.causes(), ended.Error()+": ")
		return &endedError{key: cmp.Or(u.Key, key), ended: ended, detail: fmt.Sprintf("%v: %s", why, causes)}
	}
	if !slices.ContainsFunc(u.Nodes, isContextError) {
		return err
	}
	// A copy, because all waiters share the error.
	hidden := &UnavailableError{Key: u.Key, Nodes: slices.Clone(u.Nodes), Permanent: u.Permanent}
	for i, n := range hidden.Nodes {
		if isContextError(n) {
			hidden.Nodes[i] = internalContextError{n}
		}
	}
	return hidden
}

// measured returns the error that counts in the metrics: the backend's. If the caller's end came
// before an answer was due, it says nothing about the backend, and the caller's error counts.
// AcquireAny does not use it. It asks for its keys one after the other, and most of the time one of
// them has no answer yet.
func measured(began time.Time, backends, callers error) error {
	if time.Since(began) < answerDue {
		return callers
	}
	return backends
}

func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// internalContextError is the error of a context of ours. It does not match a context's error,
// since callers would take it for the end of their own context.
type internalContextError struct{ error }

func (e internalContextError) Is(target error) bool {
	return target != context.DeadlineExceeded && target != context.Canceled && errors.Is(e.error, target)
}

func (e internalContextError) As(target any) bool { return errors.As(e.error, target) }

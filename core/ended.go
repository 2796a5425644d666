package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ended is ctx's error, also when the connection has noticed the deadline before the context's timer.
func ended(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// endedError says that the caller's context ended a call. It matches the context's error, and never [ErrUnavailable]: who asks no more
// says nothing about the backend.
type endedError struct {
	key   string
	over  error  // context.Canceled or context.DeadlineExceeded
	cause error  // matched too, if it is not nil
	why   string // the cause and what the backend said, in words
}

func (e *endedError) Error() string {
	return fmt.Sprintf("core: key %q: the caller's context ended: %s", e.key, e.why)
}

func (e *endedError) Unwrap() []error { return []error{e.over, e.cause} }

// notAsked is the error of a call that was not made, since its caller's context was done.
func notAsked(ctx context.Context, key string) error {
	e := &endedError{key: key, over: ctx.Err(), cause: context.Cause(ctx), why: context.Cause(ctx).Error()}
	for _, answer := range []error{ErrTaken, ErrSealed, ErrUnavailable, ErrInvalidKey, ErrReleased} {
		if errors.Is(e.cause, answer) { // about another key: an errgroup cancels the others with the first one's error
			e.cause = nil
		}
	}
	return e
}

// told is what a caller is told of a call's error: a call that its context has ended is not one that the backend failed, and one that the
// backend, or a time-out of ours, has ended does not match a context's error.
func told(caller context.Context, key string, err error) error {
	u, ok := err.(*UnavailableError)
	if !ok {
		return err
	}
	if over := ended(caller); over != nil {
		why := over
		if cause := context.Cause(caller); cause != nil {
			why = cause
		}
		return &endedError{key: key, over: over, why: fmt.Sprintf("%v: %s", why, strings.TrimPrefix(u.causes(), over.Error()+": "))}
	}
	if !slices.ContainsFunc(u.Nodes, ofContext) {
		return err
	}
	hidden := &UnavailableError{Key: u.Key, Nodes: slices.Clone(u.Nodes)} // a copy: all who wait get the same one
	for i, n := range hidden.Nodes {
		if ofContext(n) {
			hidden.Nodes[i] = ofAnotherContext{n}
		}
	}
	return hidden
}

func ofContext(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// ofAnotherContext is an error that a context of ours ended: a caller would take it for the end of its own.
type ofAnotherContext struct{ error }

func (e ofAnotherContext) Is(target error) bool {
	return target != context.DeadlineExceeded && target != context.Canceled && errors.Is(e.error, target)
}

func (e ofAnotherContext) As(target any) bool { return errors.As(e.error, target) }

package idempotency

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// attempt sends a call once. If the header of the answer does not come in time, the attempt ends.
// The body may take as long as the call's own context allows. twice says that net/http may have
// sent the call again itself, because a connection broke.
func (t *Transport) attempt(call *http.Request) (resp *http.Response, twice bool, err error) {
	var conns atomic.Int32
	ctx, cancel := context.WithCancelCause(httptrace.WithClientTrace(call.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { conns.Add(1) },
	}))
	timer := time.AfterFunc(t.Timeout, func() { cancel(errNoAnswer) })
	resp, err = t.Base.RoundTrip(call.WithContext(ctx))
	twice = conns.Load() > 1
	if err == nil && resp.Body == nil { // http.Client allows that, too
		resp.Body = http.NoBody
	}
	if timer.Stop() && err == nil {
		resp.Request = call
		if resp.StatusCode == http.StatusSwitchingProtocols {
			cancel(nil) // the body is the connection, and is not under this context
		} else {
			resp.Body = &attemptBody{resp.Body, cancel}
		}
		return resp, twice, nil
	}
	if err == nil { // the answer came too late
		_ = resp.Body.Close()
		err = errNoAnswer
	}
	cancel(nil)
	if cause := context.Cause(ctx); cause == errNoAnswer && call.Context().Err() == nil {
		err = errNoAnswer // alone: url.Error does not look into an error that wraps it
	}
	return nil, twice, err
}

var errSentTwice = errors.New("idempotency: a connection broke, and net/http sent the call again")

// errNoAnswer is a time-out: it implements net.Error.
var errNoAnswer error = &attemptTimeout{}

type attemptTimeout struct{}

func (*attemptTimeout) Error() string   { return "idempotency: an attempt took too long" }
func (*attemptTimeout) Timeout() bool   { return true }
func (*attemptTimeout) Temporary() bool { return true }
func (*attemptTimeout) Is(target error) bool {
	return target == context.DeadlineExceeded
}

// notAgain is why a call is not sent again. It is a time-out if the call's deadline passed.
type notAgain struct {
	error
	cause error
}

func (e *notAgain) Unwrap() error { return e.error }
func (e *notAgain) Timeout() bool { return errors.Is(e.cause, context.DeadlineExceeded) }

// attemptBody ends the context of its attempt when it is closed.
type attemptBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *attemptBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

package idempotency

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/onelane/onelane/internal/keytext"
)

// TransportOption configures [NewTransport]. A nil option is ignored. If two options set the same
// thing, the later one counts. NewTransport panics if an option is wrong.
type TransportOption interface{ applyTransport(*transport) }

type transportOption func(*transport)

func (o transportOption) applyTransport(t *transport) { o(t) }

// WithHeader sets the name of the header. The default is Idempotency-Key.
func WithHeader(name string) TransportOption {
	return transportOption(func(t *transport) {
		t.header = http.CanonicalHeaderKey(name)
		t.check(validToken(name), "WithHeader(%q): pass the name of a header", name)
	})
}

// WithAttempts sets how many times a call is sent at most. It also sets how long one attempt may
// take until the header of its answer arrives. The default is 4 attempts of 10 s. With 1 attempt
// the transport only adds the key.
func WithAttempts(n int, each time.Duration) TransportOption {
	return transportOption(func(t *transport) {
		t.attempts, t.each = n, each
		t.check(n >= 1 && each > 0, "WithAttempts(%d, %v): both must be positive", n, each)
	})
}

// WithPause sets how long the transport waits before it sends a call again. The first pause is
// about first. Each later pause is twice as long, up to longest. If Retry-After asks for a pause
// longer than longest, the transport returns the answer and does not send the call again. The
// default is 100 ms and 10 s.
func WithPause(first, longest time.Duration) TransportOption {
	return transportOption(func(t *transport) {
		t.first, t.longest = first, longest
		t.check(0 < first && first <= longest, "WithPause(%v, %v): the first pause must be positive and not longer than the longest", first, longest)
	})
}

// RetryStatuses adds statuses after which a call is sent again, such as 502 and 504 of a gateway.
// The server must keep "one key, one effect" for them: see [DefaultFate].
func RetryStatuses(statuses ...int) TransportOption {
	return transportOption(func(t *transport) {
		for _, s := range statuses {
			t.retried[s] = true
		}
	})
}

// OnKey calls fn with each call's request and its key before the call is sent for the first time.
// Store the key there if the call must survive a crash of the client: after a restart send it again
// with [ContextWithKey]. If fn returns an error, the call is not sent and its error wraps that of
// fn.
func OnKey(fn func(r *http.Request, key string) error) TransportOption {
	return transportOption(func(t *transport) {
		t.onKey = fn
		t.check(fn != nil, "OnKey(nil): pass a function, or omit the option")
	})
}

type transport struct {
	base           http.RoundTripper
	header         string
	attempts       int
	each           time.Duration
	first, longest time.Duration
	retried        map[int]bool
	onKey          func(*http.Request, string) error
}

func (t *transport) check(ok bool, format string, args ...any) {
	if !ok {
		panic("idempotency: NewTransport: " + fmt.Sprintf(format, args...))
	}
}

// NewTransport returns the client's half: an [http.RoundTripper] around base, or around
// [http.DefaultTransport] if base is nil. Each call gets an idempotency key, except GET, HEAD,
// OPTIONS and TRACE, which have no effect to protect. The call is sent again with the same key
// after:
//
//   - an error of base, or an attempt that took too long ([WithAttempts]), unless the call's own
//     context ended or the server's certificate is not trusted
//   - 425, 429 and 503 with Retry-After, by which a server says that it did nothing
//   - 503 without Retry-After, which may also mean that the first request runs: the server must heed
//     the key
//   - 409 with Retry-After, by which a server says that the first request is running
//   - a status of [RetryStatuses]
//
// Any other answer is returned, including 500, 502 and 504. A server that has no record of the call
// would run it a second time. After the last attempt its answer or error is returned as it is. The
// key is in the header of the answer's Request. A call is one RoundTrip. If its header or its
// context ([ContextWithKey]) has a key already, the call keeps that key. A redirect that repeats
// the call, such as 307, keeps its key.
//
// To send a body again, the transport calls the request's GetBody. http.NewRequest sets it for a
// bytes.Buffer, a bytes.Reader and a strings.Reader. A call that has a body and no GetBody is sent
// once. With the header Idempotency-Key, net/http itself also sends a request again, with the same
// key, if an idle connection turns out to be closed. The server must honour the key. The transport
// is safe for concurrent use.
//
// Source: draft-ietf-httpapi-idempotency-key-header-07; Retry-After: RFC 9110, 10.2.3.
func NewTransport(base http.RoundTripper, opts ...TransportOption) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	t := &transport{
		base: base, header: "Idempotency-Key", attempts: 4, each: 10 * time.Second,
		first: 100 * time.Millisecond, longest: 10 * time.Second,
		retried: map[int]bool{http.StatusTooEarly: true, http.StatusTooManyRequests: true, http.StatusServiceUnavailable: true},
	}
	for _, o := range opts {
		if o != nil {
			o.applyTransport(t)
		}
	}
	return t
}

// NewKey returns a new key with 128 random bits.
func NewKey() string { return rand.Text() }

// ContextWithKey returns a context whose calls have this key instead of a new one. It is for
// retries of your own, and for retries after a crash with a key that was stored before. The key has
// 1 to 255 printable ASCII characters.
func ContextWithKey(ctx context.Context, key string) context.Context {
	return keytext.WithKey(ctx, key)
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return t.base.RoundTrip(r)
	}
	call, err := t.withKey(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as every RoundTripper must
		}
		return nil, err
	}
	for attempt, pause := 1, t.first; ; attempt, pause = attempt+1, min(2*pause, t.longest) {
		resp, err := t.attempt(call)
		if attempt >= t.attempts || r.Body != nil && r.Body != http.NoBody && r.GetBody == nil || !t.retryable(r.Context(), resp, err) {
			return resp, err
		}
		wait, ok := t.pause(resp, pause)
		if end, ends := r.Context().Deadline(); !ok || resp != nil && ends && time.Until(end) <= wait {
			return resp, err // there is no time for another
		}
		why := err
		if resp != nil {
			why = errors.New(resp.Status)
			discard(resp.Body)
		}
		if call, err = again(call, wait); err != nil {
			return nil, fmt.Errorf("idempotency: %w; not sent again after attempt %d: %w", err, attempt, why)
		}
	}
}

// attempt sends a call once. If the header of the answer does not come in time, the attempt ends.
// The body may take as long as the call's own context allows.
func (t *transport) attempt(call *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(call.Context())
	timer := time.AfterFunc(t.each, func() { cancel(errNoAnswer) })
	resp, err := t.base.RoundTrip(call.WithContext(ctx))
	if timer.Stop() && err == nil {
		resp.Request = call
		body := &attemptBody{resp.Body, cancel}
		if w, ok := resp.Body.(io.Writer); ok { // after 101
			resp.Body = &attemptConn{body, w}
		} else {
			resp.Body = body
		}
		return resp, nil
	}
	if err == nil { // the answer came too late
		_ = resp.Body.Close()
		err = errNoAnswer
	}
	cancel(nil)
	if cause := context.Cause(ctx); cause == errNoAnswer && call.Context().Err() == nil {
		err = fmt.Errorf("idempotency: %w: %w", errNoAnswer, err)
	}
	return nil, err
}

// errNoAnswer is a time-out: it implements net.Error.
var errNoAnswer error = &attemptTimeout{}

type attemptTimeout struct{}

func (*attemptTimeout) Error() string   { return "an attempt took too long" }
func (*attemptTimeout) Timeout() bool   { return true }
func (*attemptTimeout) Temporary() bool { return true }
func (*attemptTimeout) Is(target error) bool {
	return target == context.DeadlineExceeded
}

// attemptBody ends the context of its attempt when it is closed.
type attemptBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *attemptBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

// attemptConn is the body of a 101 answer. That body is the connection.
type attemptConn struct {
	*attemptBody
	io.Writer
}

// withKey returns a copy of r that has a key.
func (t *transport) withKey(r *http.Request) (*http.Request, error) {
	call := r.Clone(r.Context())
	key, hop, err := t.key(r)
	if err != nil {
		return nil, err
	}
	if len(r.Header[t.header]) == 0 {
		value, err := keytext.Format(key)
		if err != nil {
			return nil, err
		}
		if call.Header == nil {
			call.Header = make(http.Header)
		}
		call.Header.Set(t.header, value)
	}
	if t.onKey != nil && !hop {
		if err := t.onKey(call, key); err != nil {
			return nil, fmt.Errorf("idempotency: OnKey: %w", err)
		}
	}
	return call, nil
}

// key returns the key of a request: its own, the one in its context, or a new one. A hop of a
// redirect, such as 307, has the key of the previous request.
func (t *transport) key(r *http.Request) (key string, hop bool, err error) {
	values := r.Header[t.header]
	if r.Response != nil && r.Response.Request != nil {
		before := r.Response.Request.Header[t.header]
		// http.Client copies a key of the caller's own.
		if hop = len(before) > 0 && (len(values) == 0 || slices.Equal(values, before)); hop {
			values = before
		}
	}
	if len(values) > 0 {
		if key, err = keytext.Parse(values); err != nil {
			err = fmt.Errorf("idempotency: the header %s has no valid key: %w", t.header, err)
		}
		return key, hop, err
	}
	if key, ok := keytext.FromContext(r.Context()); ok {
		return key, false, nil
	}
	return NewKey(), false, nil
}

// retryable reports whether a call may be sent again. It may if the outcome is not known, or if the
// server says that it did nothing or is not done.
func (t *transport) retryable(ctx context.Context, resp *http.Response, err error) bool {
	var untrusted *tls.CertificateVerificationError
	switch {
	case ctx.Err() != nil || errors.As(err, &untrusted):
		return false
	case err != nil:
		return true
	case resp.StatusCode == http.StatusConflict:
		return resp.Header.Get("Retry-After") != ""
	}
	return t.retried[resp.StatusCode]
}

// pause returns how long to wait: what Retry-After asks for, or about planned, whichever is longer.
// It returns false if Retry-After asks for more than the longest pause.
func (t *transport) pause(resp *http.Response, planned time.Duration) (time.Duration, bool) {
	var random [1]byte
	_, _ = rand.Read(random[:])
	planned -= planned / 4 * time.Duration(random[0]) / 256 // so that clients do not retry in step
	if resp == nil {
		return planned, true
	}
	text := resp.Header.Get("Retry-After")
	seconds, err := strconv.ParseUint(text, 10, 31) // as many as a duration holds
	if err == nil {
		asked := time.Duration(seconds) * time.Second
		return max(asked, planned), asked <= t.longest
	}
	if errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	if at, err := http.ParseTime(text); err == nil {
		asked := time.Until(at)
		return max(asked, planned), asked <= t.longest
	}
	return planned, true
}

// again waits, and then returns a copy of the call with its body unread.
func again(call *http.Request, wait time.Duration) (*http.Request, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-call.Context().Done():
		return nil, context.Cause(call.Context())
	}
	call = call.Clone(call.Context()) // base may have kept the other
	if call.GetBody != nil {
		body, err := call.GetBody()
		if err != nil {
			return nil, fmt.Errorf("the body cannot be read again by GetBody: %w", err)
		}
		call.Body = body
	}
	return call, nil
}

// discard reads the rest of a short answer, so that its connection can be used again.
func discard(body io.ReadCloser) {
	timer := time.AfterFunc(time.Second, func() { _ = body.Close() })
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

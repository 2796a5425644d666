package idempotency

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// TransportOption configures [NewTransport]. A nil one is ignored, the later of two wins. One with an impossible value
// panics where it is made.
type TransportOption interface{ applyTransport(*transport) }

type transportOption func(*transport)

func (o transportOption) applyTransport(t *transport) { o(t) }

// WithHeader sets the name of the header. Default Idempotency-Key.
func WithHeader(name string) TransportOption {
	must(name != "" && !strings.ContainsAny(name, " :\r\n\t"), "WithHeader(%q): pass the name of a header", name)
	return transportOption(func(t *transport) { t.header = http.CanonicalHeaderKey(name) })
}

// WithAttempts sets how often a call is sent at most. Default 4; 1 only adds the key.
func WithAttempts(n int) TransportOption {
	must(n >= 1, "WithAttempts(%d): a call must be sent once at least", n)
	return transportOption(func(t *transport) { t.attempts = n })
}

// WithPause sets how long to wait before a call is sent again: about first, then twice as long each time, up to longest.
// A server that names a time by Retry-After is asked then, unless that is beyond longest: then its answer is returned.
// Default 100 ms and 10 s.
func WithPause(first, longest time.Duration) TransportOption {
	must(0 < first && first <= longest, "WithPause(%v, %v): the first pause must be positive, and not longer than the longest", first, longest)
	return transportOption(func(t *transport) { t.first, t.longest = first, longest })
}

type transport struct {
	base           http.RoundTripper
	header         string
	attempts       int
	first, longest time.Duration
}

// NewTransport is the client half, an [http.RoundTripper] around base ([http.DefaultTransport] if it is nil): each call with a
// method that may have an effect (all but GET, HEAD, OPTIONS and TRACE) gets an idempotency key, as a Structured Field
// String, and is sent again with the same key when its outcome is not known or the server asks for it:
//
//   - base returned an error, unless the call's context ended, or the server's certificate is not trusted;
//   - 408, 425, 429, 502, 503 or 504;
//   - 409 with Retry-After, by which a server says that the first is still running.
//
// Any other answer is returned, 500 too: after that a server may have given up the key, and the effect could repeat.
// After the last attempt, or where the context's deadline leaves no time for another, the answer is returned as it is, and
// an error after the last attempt too. A call is one RoundTrip: a key in the header,
// or in the context (see [ContextWithKey]), is left as it is, so that somebody else's retries keep it.
//
// A body is sent again by the request's GetBody, which http.NewRequest sets for the usual ones; without it the call is
// sent once. Where the header is Idempotency-Key, net/http itself sends a request again, too, when a connection that was
// idle turns out to be closed: with the same key. The server must honour the key: against one that does not, retries
// repeat effects. It is safe for concurrent use; CloseIdleConnections is passed on.
//
// Source: draft-ietf-httpapi-idempotency-key-header-07; Retry-After: RFC 9110, 10.2.3.
func NewTransport(base http.RoundTripper, opts ...TransportOption) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	t := &transport{base: base, header: "Idempotency-Key", attempts: 4, first: 100 * time.Millisecond, longest: 10 * time.Second}
	for _, o := range opts {
		if o != nil {
			o.applyTransport(t)
		}
	}
	return t
}

// NewKey returns a new key: 128 random bits as text.
func NewKey() string { return rand.Text() }

type clientKey struct{}

// ContextWithKey returns a context whose calls have this key instead of a new one: for retries of one's own, and for
// those after a crash, with a key that was stored before the first try. It has 1 to 255 printable characters of ASCII.
func ContextWithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, clientKey{}, key)
}

// KeyFromContext returns the key of [ContextWithKey], and false where there is none.
func KeyFromContext(ctx context.Context) (string, bool) {
	key, ok := ctx.Value(clientKey{}).(string)
	return key, ok
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
		resp, err := t.base.RoundTrip(call)
		if attempt >= t.attempts || r.Body != nil && r.Body != http.NoBody && r.GetBody == nil || !retryable(r.Context(), resp, err) {
			return resp, err
		}
		wait, ok := t.pause(resp, pause)
		if end, ends := r.Context().Deadline(); !ok || resp != nil && ends && time.Until(end) <= wait {
			return resp, err // nothing better will come
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

// withKey returns a copy of r that has a key.
func (t *transport) withKey(r *http.Request) (*http.Request, error) {
	call := r.Clone(r.Context())
	if len(r.Header[t.header]) > 0 {
		return call, nil
	}
	key, ok := KeyFromContext(r.Context())
	if !ok {
		key = NewKey()
	}
	value, err := FormatKey(key)
	if err != nil {
		return nil, err
	}
	if call.Header == nil {
		call.Header = make(http.Header)
	}
	call.Header.Set(t.header, value)
	return call, nil
}

// retryable says whether the outcome is not known, or the server wants to be asked again.
func retryable(ctx context.Context, resp *http.Response, err error) bool {
	var untrusted *tls.CertificateVerificationError
	switch {
	case ctx.Err() != nil || errors.As(err, &untrusted):
		return false
	case err != nil:
		return true
	}
	switch resp.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	case http.StatusConflict:
		return resp.Header.Get("Retry-After") != ""
	}
	return false
}

// pause is how long to wait: what the server says, or about planned; false where the server wants more time than there
// is.
func (t *transport) pause(resp *http.Response, planned time.Duration) (time.Duration, bool) {
	var random [1]byte
	_, _ = rand.Read(random[:])
	planned -= planned / 4 * time.Duration(random[0]) / 256 // so that clients do not come in step
	if resp == nil {
		return planned, true
	}
	text := resp.Header.Get("Retry-After")
	seconds, err := strconv.ParseUint(text, 10, 31) // a duration holds that many seconds
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

// again waits, and returns the call with its body as it was.
func again(call *http.Request, wait time.Duration) (*http.Request, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-call.Context().Done():
		return nil, context.Cause(call.Context())
	}
	call = call.Clone(call.Context()) // base may keep the other
	if call.GetBody != nil {
		body, err := call.GetBody()
		if err != nil {
			return nil, fmt.Errorf("the body cannot be had again: %w", err)
		}
		call.Body = body
	}
	return call, nil
}

// discard reads what is left of a short answer, so that its connection can be used again.
func discard(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

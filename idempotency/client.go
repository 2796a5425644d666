package idempotency

import (
	"cmp"
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

	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/keytext"
)

// Transport is the client's half: an [http.RoundTripper] that gives each call an idempotency key,
// except GET, HEAD, OPTIONS and TRACE, which have no effect to protect. The zero Transport works:
//
//	client := &http.Client{Transport: &idempotency.Transport{}}
//
// The call is sent again with the same key after:
//
//   - an error of Base, or an attempt that took longer than Timeout, unless the call's own context
//     ended or the server's certificate is not trusted
//   - 425, 429 and 503 with Retry-After, by which a server says that it did nothing
//   - 503 without Retry-After, which may also mean that the first request runs: the server must
//     heed the key
//   - 409 with Retry-After, by which a server says that the first request is running
//   - a status of RetryStatuses
//
// If the first request runs for long, the zero Transport waits for up to 6 minutes. That is longer
// than the server's [MaxRun] and, after a crash, than its lease. Set a deadline on the call's
// context if it is too long.
//
// What the Transport returns:
//
//   - Any other answer, including 500, 502 and 504, because a server without a record of the call
//     would run it again.
//   - The answer or the error of the last attempt. 425, 429 and 503 with Retry-After would say that
//     nothing was done. They become an error if an earlier attempt may have been carried out.
//   - Another refusal of the last attempt, such as 401: it does not say what an earlier attempt
//     did.
//
// The key:
//
//   - It is in the header of the answer's Request.
//   - A call is one RoundTrip. If its header or its context ([ContextWithKey]) has a key already,
//     the call keeps that key. Retries outside of the Transport are new calls with new keys, unless
//     they share such a context.
//   - A redirect that repeats the call, such as 307, keeps its key.
//   - The transport sends the key in quotes, as the draft wants it. A key in the call's header is
//     sent as it is. Most payment providers take the quotes for a part of the key: "k" and k are
//     two payments there. Always send a payment in the same way, and ask the provider for the key
//     with its quotes.
//   - If the machine stands still for longer than the server keeps keys, the next attempt may run
//     the call again. A laptop that is closed does so.
//
// Bodies:
//
//   - To send a body again, the transport calls the request's GetBody. http.NewRequest sets it for
//     a bytes.Buffer, a bytes.Reader and a strings.Reader.
//   - A call that has a body and no GetBody is sent once. So is a call with a Trailer, which two
//     bodies would set at the same time.
//   - If an idle connection turns out to be closed, net/http itself also sends a request again that
//     has the header Idempotency-Key or X-Idempotency-Key. The key is the same then, and the server
//     must honour it.
//
// A Transport is safe for concurrent use. Its fields must not change after the first call. A field
// that is zero has its default. If a field is wrong, each call returns an error that names the
// field, and nothing is sent.
//
// Source: draft-ietf-httpapi-idempotency-key-header-07; Retry-After: RFC 9110, 10.2.3.
type Transport struct {
	// Base sends the requests. The default is http.DefaultTransport.
	Base http.RoundTripper
	// Header is the name of the header that carries the key. The default is Idempotency-Key.
	Header string
	// Attempts is how many times a call is sent at most. The default is 9, which takes longer than the
	// lease of a server that crashed. With the default, attempts do not count for 6 minutes that end
	// with 409 and Retry-After. With 1 attempt the transport adds the key and sends nothing again.
	// Timeout counts then, too.
	Attempts int
	// Timeout is how long one attempt may take until the header of its answer arrives. The default
	// is 10 s. http.Client.Timeout limits all attempts and pauses together: leave it 0, or make it
	// longer than Attempts times Timeout.
	Timeout time.Duration
	// FirstPause is about how long the transport waits before it sends a call for the second time.
	// Each later pause is twice as long, up to LongestPause. The default is 100 ms.
	FirstPause time.Duration
	// LongestPause is the longest wait between two attempts. If Retry-After asks for more, the
	// transport returns the answer and does not send the call again. The default is 10 s.
	LongestPause time.Duration
	// RetryStatuses are further statuses after which a call is sent again, such as 502 and 504 of a
	// gateway. The server must keep "one key, one effect" for them: see [DefaultFate].
	RetryStatuses []int
	// OnKey, if it is set, is called with each call's request and its key before the call is sent
	// for the first time. Store the key there if the call must survive a crash of the client: after
	// a restart send it again with [ContextWithKey]. A key that you set in the header is without its
	// quotes here: store and set the header itself. If OnKey returns an error, the call is not sent
	// and its error wraps that of OnKey.
	OnKey func(r *http.Request, key string) error
}

const (
	// defaultAttempts have pauses of 17 s or more in all. The lease of a server that crashed is 10 s.
	defaultAttempts = 9
	// outlast is how long the zero Transport waits for a first request that runs.
	outlast = claim.DefaultMaxRun + time.Minute
)

// withDefaults returns a copy of t that has a default in each field that is zero. It returns an
// error if a field is wrong.
func (t *Transport) withDefaults() (Transport, error) {
	d := *t
	d.Base = t.base()
	d.Header = http.CanonicalHeaderKey(cmp.Or(t.Header, "Idempotency-Key"))
	d.Attempts = cmp.Or(t.Attempts, defaultAttempts)
	d.Timeout = cmp.Or(t.Timeout, 10*time.Second)
	d.FirstPause = cmp.Or(t.FirstPause, 100*time.Millisecond)
	d.LongestPause = cmp.Or(t.LongestPause, 10*time.Second)
	return d, d.check()
}

// check returns an error that names the field that is wrong.
func (t *Transport) check() error {
	const wrong = "idempotency: Transport."
	switch {
	case !validToken(t.Header) || keptHeader(t.Header) != nil:
		return fmt.Errorf(wrong+"Header is %q: set a header that net/http sends, for example Idempotency-Key", t.Header)
	case t.Attempts < 0:
		return fmt.Errorf(wrong+"Attempts is %d: set a positive number, or 0 for the default", t.Attempts)
	case t.Timeout < 0:
		return fmt.Errorf(wrong+"Timeout is %v: set a positive duration, or 0 for the default", t.Timeout)
	case t.FirstPause < 0:
		return fmt.Errorf(wrong+"FirstPause is %v: set a positive duration, or 0 for the default", t.FirstPause)
	case t.LongestPause < 0:
		return fmt.Errorf(wrong+"LongestPause is %v: set a positive duration, or 0 for the default", t.LongestPause)
	case t.FirstPause > t.LongestPause:
		return fmt.Errorf(wrong+"FirstPause is %v: it must not be longer than LongestPause, %v; set both", t.FirstPause, t.LongestPause)
	}
	for _, status := range t.RetryStatuses {
		if status < 200 || status > 599 {
			return fmt.Errorf(wrong+"RetryStatuses has %d: list statuses of answers, 200 to 599", status)
		}
	}
	return nil
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// ContextWithKey returns a context whose calls have this key instead of a new one. It is for
// retries of your own, and for retries after a crash with a key that was stored before. Make such a
// key with crypto/rand.Text, and store it before the first attempt. The key has 1 to 255 printable
// ASCII characters. It is sent in quotes: see [Transport].
func ContextWithKey(ctx context.Context, key string) context.Context {
	return keytext.WithKey(ctx, key)
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	d, err := t.withDefaults()
	if err != nil {
		return nil, unsent(r, err)
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return d.Base.RoundTrip(r)
	}
	waits := time.Duration(0)
	if t.Attempts == 0 {
		waits = outlast
	}
	return d.roundTrip(r, waits)
}

// unsent closes the body of a request that is not sent, as every RoundTripper must.
func unsent(r *http.Request, err error) error {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return err
}

// roundTrip sends a call until its answer is final. Each field of t is set. As long as it waits for
// a first request that runs, attempts do not count.
func (t *Transport) roundTrip(r *http.Request, waits time.Duration) (*http.Response, error) {
	began := time.Now()
	call, err := t.withKey(r)
	if err != nil {
		return nil, unsent(r, err)
	}
	var unknown error // how an attempt ended that may have been carried out
	last := func(resp *http.Response, err error) (*http.Response, error) {
		if unknown == nil || !nothingDone(resp) {
			return resp, err
		}
		discard(resp.Body)
		return nil, fmt.Errorf("idempotency: the last attempt got %s; an earlier one may have been carried out: %w", resp.Status, unknown)
	}
	for attempt, pause := 1, t.FirstPause; ; attempt, pause = attempt+1, min(2*pause, t.LongestPause) {
		resp, twice, err := t.attempt(call)
		if twice && unknown == nil {
			unknown = errSentTwice
		}
		if resp != nil && inFlight(resp) && time.Since(began) < waits {
			attempt--
		}
		once := len(r.Trailer) > 0 || r.Body != nil && r.Body != http.NoBody && r.GetBody == nil
		if attempt >= t.Attempts || once || !t.retryable(r.Context(), resp, err) {
			return last(resp, err)
		}
		wait, ok := t.pause(resp, pause)
		if end, ends := r.Context().Deadline(); !ok || resp != nil && ends && time.Until(end) <= wait {
			return last(resp, err) // there is no time for another
		}
		why := err
		if resp != nil {
			why = errors.New(resp.Status)
			discard(resp.Body)
		}
		if unknown == nil && !nothingDone(resp) {
			unknown = why
		}
		if call, err = again(call, wait); err != nil {
			return nil, &notAgain{fmt.Errorf("idempotency: %w; not sent again after attempt %d: %w", err, attempt, why), err}
		}
	}
}

// withKey returns a copy of r that has a key.
func (t *Transport) withKey(r *http.Request) (*http.Request, error) {
	call := r.Clone(r.Context())
	call.Trailer = r.Trailer // its values may be set while the body is read
	key, hop, err := t.key(r)
	if err != nil {
		return nil, err
	}
	if len(r.Header[t.Header]) == 0 {
		value, err := keytext.Format(key)
		if err != nil {
			return nil, err
		}
		if call.Header == nil {
			call.Header = make(http.Header)
		}
		call.Header.Set(t.Header, value)
	}
	if t.OnKey != nil && !hop {
		if err := t.OnKey(call, key); err != nil {
			return nil, fmt.Errorf("idempotency: OnKey: %w", err)
		}
	}
	return call, nil
}

// key returns the key of a request: its own, the one in its context, or a new one. A hop of a
// redirect, such as 307, has the key of the previous request.
func (t *Transport) key(r *http.Request) (key string, hop bool, err error) {
	values := r.Header[t.Header]
	if r.Response != nil && r.Response.Request != nil {
		before := r.Response.Request.Header[t.Header]
		// http.Client copies a key of the caller's own.
		if hop = len(before) > 0 && (len(values) == 0 || slices.Equal(values, before)); hop {
			values = before
		}
	}
	if len(values) > 0 {
		if key, err = keytext.Parse(values); err != nil {
			err = fmt.Errorf("idempotency: the header %s has no valid key: %w", t.Header, err)
		}
		return key, hop, err
	}
	if key, ok := keytext.FromContext(r.Context()); ok {
		return key, false, nil
	}
	return rand.Text(), false, nil
}

// retryable reports whether a call may be sent again. It may if the outcome is not known, or if the
// server says that it did nothing or is not done.
func (t *Transport) retryable(ctx context.Context, resp *http.Response, err error) bool {
	var untrusted *tls.CertificateVerificationError
	switch {
	case ctx.Err() != nil || errors.As(err, &untrusted):
		return false
	case err != nil:
		return true
	}
	switch resp.StatusCode {
	case http.StatusTooEarly, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	}
	return inFlight(resp) || slices.Contains(t.RetryStatuses, resp.StatusCode)
}

// inFlight reports whether a server says that the first request is running.
func inFlight(resp *http.Response) bool {
	return resp.StatusCode == http.StatusConflict && resp.Header.Get("Retry-After") != ""
}

// nothingDone reports whether a server says by its answer that it did nothing.
func nothingDone(resp *http.Response) bool {
	if resp == nil {
		return false
	}
	switch resp.StatusCode {
	case http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusServiceUnavailable:
		return resp.Header.Get("Retry-After") != ""
	}
	return false
}

// pause returns how long to wait: the time of Retry-After, or about the planned time if it is
// longer. It returns false if Retry-After asks for more than the longest pause.
func (t *Transport) pause(resp *http.Response, planned time.Duration) (time.Duration, bool) {
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
		return max(asked, planned), asked <= t.LongestPause
	}
	if errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	if at, err := http.ParseTime(text); err == nil {
		asked := time.Until(at)
		return max(asked, planned), asked <= t.LongestPause
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
	call = call.WithContext(call.Context()) // base may have kept the other
	call.Header = call.Header.Clone()
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

// CloseIdleConnections calls the method of that name of Base, if Base has it.
// [http.Client.CloseIdleConnections] calls it.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

package idempotency_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/keytext"
)

// base is a RoundTripper that answers from a list, and notes what it got and when.
type base struct {
	answers []any // a status, an error, or a *http.Response
	sent    []*http.Request
	calls   []call
	open    int // bodies of answers that were not closed
}

type call struct {
	key, body string
	at        time.Time
}

func (b *base) RoundTrip(r *http.Request) (*http.Response, error) {
	b.sent = append(b.sent, r)
	c := call{strings.Join(r.Header["Idempotency-Key"], "|"), "", time.Now()}
	if r.Body != nil {
		text, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		c.body = string(text)
	}
	b.calls = append(b.calls, c)
	answer := b.answers[min(len(b.calls), len(b.answers))-1]
	resp, ok := answer.(*http.Response)
	if !ok {
		switch answer := answer.(type) {
		case error:
			return nil, answer
		case int:
			resp = &http.Response{StatusCode: answer, Status: fmt.Sprint(answer), Header: http.Header{}}
		}
	}
	b.open++
	resp.Body = &closing{strings.NewReader("answer"), func() { b.open-- }}
	return resp, nil
}

type closing struct {
	io.Reader
	close func()
}

func (c *closing) Close() error { c.close(); return nil }

func retryAfter(status int, value string) *http.Response {
	return &http.Response{StatusCode: status, Status: fmt.Sprint(status), Header: http.Header{"Retry-After": {value}}}
}

func request(t testing.TB, ctx context.Context, method, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://x.example/pay", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var errCut = errors.New("connection reset by peer")

// One key per call, kept over its retries, with the whole body each time; another for the next call.
func TestTransport_OneKeyPerCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &base{answers: []any{errCut, 503, retryAfter(409, "1"), 201}}
		rt := &idempotency.Transport{Base: b}
		seen := map[string]bool{}
		for i := range 2 {
			b.calls = nil
			r := request(t, t.Context(), "POST", "7 EUR")
			resp, err := rt.RoundTrip(r)
			if err != nil || resp.StatusCode != 201 || len(b.calls) != 4 || b.open != i+1 {
				t.Fatalf("%v, %v after %d calls, %d bodies open", resp, err, len(b.calls), b.open)
			}
			for _, c := range b.calls {
				if c.key != b.calls[0].key || len(c.key) < 24 || c.key[0] != '"' || c.body != "7 EUR" {
					t.Errorf("%+v after %+v", c, b.calls[0])
				}
			}
			if len(r.Header) > 0 {
				t.Errorf("the caller's request was changed: %v", r.Header)
			}
			for i, one := range b.sent { // base may be reading the one before still
				if one == r || slices.Contains(b.sent[i+1:], one) {
					t.Errorf("request %d is sent again itself", i)
				}
			}
			seen[b.calls[0].key] = true
		}
		if len(seen) != 2 {
			t.Error("two calls have one key")
		}
	})
}

// A key of the caller stays: in the header as it is, or in the context.
func TestTransport_CallersKey(t *testing.T) {
	t.Parallel()
	b := &base{answers: []any{200}}
	rt := &idempotency.Transport{Base: b}
	r := request(t, t.Context(), "POST", "")
	r.Header.Set("Idempotency-Key", "mine")
	if _, err := rt.RoundTrip(r); err != nil || b.calls[0].key != "mine" {
		t.Errorf("%+v, %v", b.calls, err)
	}
	ctx := idempotency.ContextWithKey(t.Context(), `or"der\7`)
	if _, err := rt.RoundTrip(request(t, ctx, "PATCH", "")); err != nil || b.calls[1].key != `"or\"der\\7"` {
		t.Errorf("%+v, %v", b.calls, err)
	}
	if key, err := keytext.Parse([]string{b.calls[1].key}); err != nil || key != `or"der\7` {
		t.Errorf("the server reads %q, %v", key, err)
	}
	for _, bad := range []string{"", "a\nb", "ä", strings.Repeat("x", 256)} {
		r, closed := request(t, idempotency.ContextWithKey(t.Context(), bad), "POST", ""), false
		r.Body = &closing{strings.NewReader("x"), func() { closed = true }}
		if _, err := rt.RoundTrip(r); err == nil || len(b.calls) > 2 || !closed {
			t.Errorf("the key %.9q was sent, or the body left open", bad)
		}
	}
	other := &base{answers: []any{200}}
	r = request(t, t.Context(), "POST", "")
	if _, err := (&idempotency.Transport{Base: other, Header: "x-request-id"}).RoundTrip(r); err != nil || other.calls[0].key != "" || len(other.sent[0].Header.Get("X-Request-Id")) < 24 {
		t.Errorf("%+v, %v", other.sent[0].Header, err)
	}
}

func TestTransport_NotSentAgain(t *testing.T) {
	t.Parallel()
	noGetBody := func(r *http.Request) { r.GetBody = nil }
	for name, tc := range map[string]struct {
		method string
		answer any
		change func(*http.Request)
	}{
		"GET":                                  {"GET", 503, nil},
		"success":                              {"POST", 201, nil},
		"408":                                  {"POST", 408, nil},
		"500":                                  {"POST", 500, nil},
		"502":                                  {"POST", 502, nil},
		"504":                                  {"POST", retryAfter(504, "1"), nil},
		"400":                                  {"POST", 400, nil},
		"401":                                  {"POST", 401, nil},
		"422":                                  {"POST", 422, nil},
		"409, its answer not kept":             {"POST", 409, nil},
		"a body that cannot be had again":      {"POST", 503, noGetBody},
		"the server wants an hour":             {"POST", retryAfter(503, "3600"), nil},
		"the server wants more than there is":  {"POST", retryAfter(503, "99999999999999999999"), nil},
		"the server wants to be asked in 2100": {"POST", retryAfter(503, "Fri, 01 Jan 2100 00:00:00 GMT"), nil},
		"the deadline comes before": {"POST", retryAfter(503, "9"), func(r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), 8*time.Second)
			t.Cleanup(cancel)
			*r = *r.WithContext(ctx)
		}},
		"a certificate that is not trusted": {"POST", &tls.CertificateVerificationError{Err: errCut}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &base{answers: []any{tc.answer}}
			r := request(t, t.Context(), tc.method, "body")
			if tc.change != nil {
				tc.change(r)
			}
			resp, err := (&idempotency.Transport{Base: b}).RoundTrip(r)
			if len(b.calls) != 1 || (b.calls[0].key == "") != (tc.method == "GET") || b.calls[0].body != "body" {
				t.Errorf("%+v", b.calls)
			}
			if want, fails := tc.answer.(error); fails && err != want || !fails && (err != nil || b.open != 1 || resp == nil) {
				t.Errorf("%v, %v", resp, err)
			}
		})
	}
}

// Pauses grow, are not shorter than the server asks for, and end with the attempts.
func TestTransport_Pauses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answers  []any
		min, max []time.Duration
		status   int
	}{
		"growing":     {[]any{503}, []time.Duration{750e6, 1500e6, 1500e6}, []time.Duration{1e9, 2e9, 2e9}, 503},
		"in seconds":  {[]any{retryAfter(429, "2"), 200}, []time.Duration{2e9}, []time.Duration{2e9}, 200},
		"as a date":   {[]any{retryAfter(503, "Sat, 01 Jan 2000 00:00:02 GMT"), 200}, []time.Duration{1500e6}, []time.Duration{2e9}, 200},
		"long past":   {[]any{retryAfter(503, "Sat, 01 Jan 1990 00:00:02 GMT"), 200}, []time.Duration{750e6}, []time.Duration{1e9}, 200},
		"at once":     {[]any{retryAfter(503, "0"), 200}, []time.Duration{750e6}, []time.Duration{1e9}, 200},
		"nonsense":    {[]any{retryAfter(503, "soon"), 200}, []time.Duration{750e6}, []time.Duration{1e9}, 200},
		"negative":    {[]any{retryAfter(503, "-5"), 200}, []time.Duration{750e6}, []time.Duration{1e9}, 200},
		"after error": {[]any{errCut, 200}, []time.Duration{750e6}, []time.Duration{1e9}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &base{answers: tc.answers}
				resp, err := (&idempotency.Transport{Base: b, Attempts: 4, FirstPause: time.Second, LongestPause: 2 * time.Second}).RoundTrip(request(t, t.Context(), "POST", ""))
				if err != nil || resp.StatusCode != tc.status || len(b.calls) != len(tc.min)+1 || b.open != 1 {
					t.Fatalf("%v, %v after %+v", resp, err, b.calls)
				}
				for i := range tc.min {
					if pause := b.calls[i+1].at.Sub(b.calls[i].at); pause < tc.min[i] || pause > tc.max[i] {
						t.Errorf("pause %d is %v, want %v to %v", i, pause, tc.min[i], tc.max[i])
					}
				}
			})
		})
	}
}

// A context that ends while the call waits ends it, with its own error and the last one.
func TestTransport_ContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b := &base{answers: []any{errCut}}
		began := time.Now()
		_, err := (&idempotency.Transport{Base: b, FirstPause: 5 * time.Second}).RoundTrip(request(t, ctx, "POST", ""))
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errCut) || time.Since(began) != time.Second || len(b.calls) != 1 {
			t.Errorf("%v after %v and %d calls", err, time.Since(began), len(b.calls))
		}
		r := request(t, t.Context(), "POST", "body")
		r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
		if _, err := (&idempotency.Transport{Base: b}).RoundTrip(r); err == nil || !strings.Contains(err.Error(), "gone") || !errors.Is(err, errCut) {
			t.Errorf("%v", err)
		}
	})
}

// On a socket: the answer is lost after the effect, and the retry brings the same key and body.
func TestTransport_LostAnswer(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		what := r.Header.Get("Idempotency-Key") + " " + string(body)
		if seen[what]++; seen[what] < 3 {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, what)
	}))
	defer s.Close()
	client := &http.Client{Transport: &idempotency.Transport{FirstPause: time.Millisecond, LongestPause: time.Millisecond, Attempts: 9, Timeout: time.Minute}}
	defer client.CloseIdleConnections()
	for range 3 {
		resp, err := client.Post(s.URL, "text/plain", strings.NewReader("7 EUR"))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if n := seen[string(body)]; n != 3 || !strings.HasSuffix(string(body), "7 EUR") {
			t.Errorf("%q came %d times", body, n)
		}
	}
	if len(seen) != 3 {
		t.Errorf("%v", seen)
	}
}

// Each attempt has its own bound, until the header of the answer is there.
func TestTransport_AttemptTooLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var times []time.Duration
		began := time.Now()
		hangs := roundTripper(func(r *http.Request) (*http.Response, error) {
			times = append(times, time.Since(began))
			if len(times) < 3 {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return &http.Response{StatusCode: 200, Body: io.NopCloser(slowBody{r.Context()})}, nil
		})
		rt := &idempotency.Transport{Base: hangs, Timeout: time.Second, FirstPause: time.Second, LongestPause: time.Second}
		resp, err := rt.RoundTrip(request(t, t.Context(), "POST", "body"))
		if err != nil || len(times) != 3 || times[1] < 1750*time.Millisecond || times[2] > 4*time.Second {
			t.Fatalf("%v after %v", err, times)
		}
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "slow" { // longer than an attempt may take
			t.Errorf("%q, %v", b, err)
		}
		_ = resp.Body.Close()

		times = nil
		rt = &idempotency.Transport{Base: hangs, Attempts: 2, Timeout: time.Second}
		_, err = rt.RoundTrip(request(t, t.Context(), "POST", "body"))
		var timeout interface{ Timeout() bool }
		if len(times) != 2 || !errors.As(err, &timeout) || !timeout.Timeout() || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %v", err, times)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// slowBody takes an hour, unless its request's context ends.
type slowBody struct{ ctx context.Context }

func (b slowBody) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Hour):
		return copy(p, "slow"), io.EOF
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func TestTransport_RetryStatuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &base{answers: []any{502, 425, 409, 504, 429, 201}}
		rt := &idempotency.Transport{Base: b, RetryStatuses: []int{502, 504, 409}, Attempts: 9}
		if resp, err := rt.RoundTrip(request(t, t.Context(), "POST", "body")); err != nil || resp.StatusCode != 201 || len(b.calls) != 6 {
			t.Errorf("%v, %v after %d calls", resp, err, len(b.calls))
		}
	})
}

// The key is known before the call is sent, and afterwards.
func TestTransport_OnKey(t *testing.T) {
	t.Parallel()
	b := &base{answers: []any{503, 200}}
	var keys []string
	note := func(r *http.Request, key string) error {
		if len(b.calls) > 0 || r.URL.Path != "/pay" {
			t.Errorf("OnKey after %d calls of %s", len(b.calls), r.URL)
		}
		keys = append(keys, key)
		return nil
	}
	rt := &idempotency.Transport{Base: b, OnKey: note, FirstPause: 1, LongestPause: 1}
	resp, err := rt.RoundTrip(request(t, t.Context(), "POST", "body"))
	if err != nil || len(keys) != 1 || len(b.calls) != 2 {
		t.Fatalf("%v, %v after %d calls", keys, err, len(b.calls))
	}
	sent := resp.Request.Header.Get("Idempotency-Key")
	if key, err := keytext.Parse([]string{sent}); err != nil || key != keys[0] || b.calls[1].key != sent {
		t.Errorf("the answer's request has %q, OnKey got %q, sent was %q", sent, keys[0], b.calls[1].key)
	}
	full := errors.New("the disk is full")
	rt = &idempotency.Transport{Base: b, OnKey: func(*http.Request, string) error { return full }}
	if _, err := rt.RoundTrip(request(t, t.Context(), "POST", "body")); !errors.Is(err, full) || len(b.calls) != 2 {
		t.Errorf("%v after %d calls", err, len(b.calls))
	}
}

func TestTransport_BadKeyInHeader(t *testing.T) {
	t.Parallel()
	b := &base{answers: []any{200}}
	r := request(t, t.Context(), "POST", "body")
	r.Header["Idempotency-Key"] = []string{"a", "b"}
	if _, err := (&idempotency.Transport{Base: b}).RoundTrip(r); err == nil || len(b.calls) > 0 {
		t.Errorf("%v after %d calls", err, len(b.calls))
	}
}

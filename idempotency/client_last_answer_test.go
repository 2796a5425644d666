package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// The answer of the charge is lost. The gateway before the payments refuses the retry with 429, by
// which it says that it did nothing. The shop believes it, and the customer's retry charges again.
func TestTransport_LastAnswerIsNotAboutTheFirstAttempt(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	var charges, sent atomic.Int64
	payments := orders(t, l, func(w http.ResponseWriter, _ *http.Request) {
		charges.Add(1)
		w.WriteHeader(http.StatusCreated)
	})
	network := roundTripper(func(r *http.Request) (*http.Response, error) {
		n := sent.Add(1)
		if n == 2 { // the gateway
			_ = r.Body.Close()
			return &http.Response{StatusCode: 429, Status: "429 Too Many Requests", Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		}
		resp, err := payments.client.Transport.RoundTrip(r)
		if err == nil && n == 1 { // charged, and the connection breaks
			_ = resp.Body.Close()
			return nil, errCut
		}
		return resp, err
	})
	client := &http.Client{Transport: &idempotency.Transport{Base: network, Attempts: 2, FirstPause: time.Millisecond}}
	shop := orders(t, l, func(w http.ResponseWriter, r *http.Request) {
		status, err := idempotency.Step(r.Context(), "charge", func(ctx context.Context) (int, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, payments.url+"/orders/7", strings.NewReader("7 EUR"))
			if err != nil {
				return 0, err
			}
			resp, err := client.Do(req)
			if err != nil {
				return 0, err // nobody knows
			}
			defer resp.Body.Close()
			if resp.StatusCode == http.StatusTooManyRequests { // "by which a server says that it did nothing"
				return 0, fmt.Errorf("payments: %s: %w", resp.Status, idempotency.ErrNothingDone)
			}
			return resp.StatusCode, nil
		})
		switch {
		case errors.Is(err, idempotency.ErrNothingDone):
			http.Error(w, err.Error(), http.StatusTooManyRequests)
		case err != nil:
			http.Error(w, err.Error(), http.StatusGatewayTimeout)
		default:
			w.WriteHeader(status)
		}
	})
	first := shop.order("")
	again := shop.order("")
	if n := charges.Load(); n != 1 {
		t.Errorf("%d charges for one order; its client got %d, then %d", n, first.status, again.status)
	}
}

// A refusal after an attempt with an unknown outcome is an error that wraps that outcome. After an
// attempt that did nothing, it is returned.
func TestTransport_RefusedAfterAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, refusal := range []any{425, 429, retryAfter(503, "0"), retryAfter(429, "3600")} {
		b := &base{answers: []any{errCut, refusal}}
		resp, err := (&idempotency.Transport{Base: b, Attempts: 2, FirstPause: 1}).RoundTrip(request(t, t.Context(), "POST", "pay"))
		if resp != nil || !errors.Is(err, errCut) || b.open != 0 {
			t.Errorf("%v: got %v, %v, %d bodies open; want an error that wraps %q", refusal, resp, err, b.open, errCut)
		}
	}
	b := &base{answers: []any{429, 429}}
	if resp, err := (&idempotency.Transport{Base: b, Attempts: 2, FirstPause: 1}).RoundTrip(request(t, t.Context(), "POST", "pay")); err != nil || resp.StatusCode != 429 {
		t.Errorf("%v, %v", resp, err)
	}
}

// A kept-alive connection breaks after the charge. net/http sends the request again by itself, because
// of the header Idempotency-Key, and the gateway says 429. That is not about the first sending.
func TestTransport_RefusedAfterNetHTTPSentAgain(t *testing.T) {
	t.Parallel()
	var charges, posts atomic.Int64
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if posts.Add(1) > 1 {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		charges.Add(1)
		conn, _, err := http.NewResponseController(w).Hijack() // the process dies
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Close()
	}))
	client := &http.Client{Transport: &idempotency.Transport{Base: s.client.Transport, Attempts: 2, FirstPause: time.Millisecond}}
	resp, err := client.Get(s.url) // its connection is used again
	must(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	must(t, resp.Body.Close())
	resp, err = client.Post(s.url, "text/plain", strings.NewReader("7 EUR"))
	if err == nil {
		defer resp.Body.Close()
		t.Errorf("got %s, by which the server says that it did nothing, after %d charge in %d sendings; want an error", resp.Status, charges.Load(), posts.Load())
	}
}

package idempotency_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// The connection breaks during the charge. The Transport asks again, hears that the charge is running, and the handler
// passes that answer on.
func TestDefaultFate_PassesOnInFlight(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	var charges, sent atomic.Int64
	charging, done := make(chan struct{}), make(chan struct{})
	payments := orders(t, l, func(w http.ResponseWriter, _ *http.Request) {
		if charges.Add(1) == 1 {
			close(charging)
			<-done
		}
		w.WriteHeader(http.StatusCreated)
	})
	defer close(done)
	cut := roundTripper(func(r *http.Request) (*http.Response, error) {
		if sent.Add(1) > 1 {
			return payments.client.Transport.RoundTrip(r)
		}
		ctx, hangUp := context.WithCancel(r.Context())
		go func() { <-charging; hangUp() }()
		return payments.client.Transport.RoundTrip(r.WithContext(ctx))
	})
	client := &http.Client{Transport: &idempotency.Transport{Base: cut, Attempts: 2}}
	shop := orders(t, l, func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, payments.url+"/orders/7", strings.NewReader("7 EUR"))
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := client.Do(req)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	})
	shop.order("").refused(t, idempotency.CodeInFlight)
	if again := shop.order(""); charges.Load() != 1 {
		t.Errorf("%d charges under one key; the retry got %d %s", charges.Load(), again.status, again.body)
	}
}

// Each of these refusals of another server says that a run exists.
func TestDefaultFate_PassesOnRefusal(t *testing.T) {
	t.Parallel()
	for _, code := range []string{idempotency.CodeKeyReused, idempotency.CodeCredentialsChanged,
		idempotency.CodeInFlight, idempotency.CodeOutcomeUnknown, idempotency.CodeResponseNotKept, idempotency.CodeDuplicateSubmit, idempotency.CodeLockLost} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			var charges atomic.Int64
			s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, _ *http.Request) {
				charges.Add(1)
				p := idempotency.RefusalOf(code)
				w.WriteHeader(p.Status)
				_ = json.NewEncoder(w).Encode(p)
			})
			s.order("")
			if s.order(""); charges.Load() != 1 {
				t.Errorf("%d charges under one key", charges.Load())
			}
		})
	}
}

// A gateway with ByHeader passes requests on to the payments service, which compresses, as docs/idempotency.md
// orders. It charged, lost the lock of LockByKey, and says so. A reverse proxy passes Accept-Encoding on, so
// net/http does not unpack the answer.
func TestDefaultFate_PassesOnPacked(t *testing.T) {
	t.Parallel()
	var charges atomic.Int64
	payments := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		charges.Add(1)
		if r.Header.Get("Accept-Encoding") != "gzip" {
			t.Errorf("Accept-Encoding: %q", r.Header.Get("Accept-Encoding"))
		}
		p := idempotency.RefusalOf(idempotency.CodeLockLost)
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(p.Status)
		packed := gzip.NewWriter(w)
		_ = json.NewEncoder(packed).Encode(p)
		_ = packed.Close()
	}))
	target, err := url.Parse(payments.url)
	must(t, err)
	proxy := &httputil.ReverseProxy{
		Transport: payments.client.Transport,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
	}
	gateway := orders(t, testutil.Locker(t), proxy.ServeHTTP)
	gateway.order("").refused(t, idempotency.CodeLockLost)
	if again := gateway.order(""); charges.Load() != 1 {
		t.Errorf("%d charges under one key; the retry got %d %s", charges.Load(), again.status, again.body)
	}
}

package idempotency_test

import (
	"compress/gzip"
	"encoding/json"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A gateway with ByHeader passes requests on to the payments service, which compresses, as docs/idempotency.md
// orders. It charged, lost the lock of LockByKey, and says so. A reverse proxy passes Accept-Encoding on, so
// net/http does not unpack the answer.
//
// Expected failure: "2 charges under one key; the retry got 409 …lock_lost…".
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

package idempotency_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// Two services under two prefixes have routes of one name.
func TestMount_TwoServices(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := idempotency.WithLocker(testutil.Locker(t))
	once := idempotency.ByHeader("Idempotency-Key", l, idempotency.Principal(byUser))
	service := func(name string) http.Handler {
		m := http.NewServeMux()
		m.Handle("POST /{id}", once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s %s, run %d", name, r.PathValue("id"), runs.Add(1))
		})))
		return m
	}
	mux := http.NewServeMux()
	mux.Handle("/payments/", http.StripPrefix("/payments", service("payment")))
	mux.Handle("/refunds/", http.StripPrefix("/refunds", service("refund")))
	s := serve(t, mux)
	post := func(path, key string) answer {
		return s.post(t.Context(), path, strings.NewReader("{}"), "Idempotency-Key", key, "X-User", "ann")
	}
	post("/payments/7", "a").want(t, 200, "payment 7, run 1", false)
	post("/refunds/7", "a").refused(t, idempotency.CodeKeyReused)
	post("/refunds/7", "b").want(t, 200, "refund 7, run 2", false)
	post("/payments/7?", "a").want(t, 200, "payment 7, run 1", true)
	post("/refunds/7", "b").want(t, 200, "refund 7, run 2", true)
}

// tenants serves POST /shops/{tenant}/orders. The route does not know the tenant.
func tenants(t *testing.T) http.Handler {
	type tenantKey struct{}
	var runs atomic.Int64
	inner := http.NewServeMux()
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)))
	inner.Handle("POST /orders/{id}", once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "order of %v, run %d", r.Context().Value(tenantKey{}), runs.Add(1))
	})))
	mux := http.NewServeMux()
	mux.HandleFunc("/shops/{tenant}/", func(w http.ResponseWriter, r *http.Request) {
		tenant := r.PathValue("tenant")
		r = r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant))
		http.StripPrefix("/shops/"+tenant, inner).ServeHTTP(w, r)
	})
	return mux
}

func TestMount_TenantInThePrefix(t *testing.T) {
	t.Parallel()
	s := serve(t, tenants(t))
	for i, tenant := range []string{"a", "b", "c%20d"} {
		post := func(key string) answer {
			return s.post(t.Context(), "/shops/"+tenant+"/orders/%41^7", strings.NewReader("{}"), "Idempotency-Key", key)
		}
		want := fmt.Sprintf("order of %s, run %d", strings.ReplaceAll(tenant, "%20", " "), i+1)
		post(tenant).want(t, 200, want, false)
		post(tenant).want(t, 200, want, true)
		if i > 0 {
			post("a").refused(t, idempotency.CodeKeyReused)
		}
	}
}

// Clients of a proxy send the whole URL.
func TestMount_AbsoluteForm(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(tenants(t))
	t.Cleanup(server.Close)
	for i, tenant := range []string{"a", "b"} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		fmt.Fprintf(conn, "POST http://shop.example/shops/%s/orders/7 HTTP/1.1\r\nHost: shop.example\r\n"+
			"Idempotency-Key: %[1]s\r\nContent-Length: 0\r\n\r\n", tenant)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(t, err)
		b := make([]byte, 100)
		n, _ := resp.Body.Read(b)
		if want := fmt.Sprintf("order of %s, run %d", tenant, i+1); string(b[:n]) != want {
			t.Errorf("got %d %q, want %q", resp.StatusCode, b[:n], want)
		}
	}
}

// A router that sets no pattern.
func TestMount_NoPattern(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)))
	v1, v2 := http.StripPrefix("/v1", once(counter(&runs))), http.StripPrefix("/v2", once(counter(&runs)))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			v1.ServeHTTP(w, r)
		} else {
			v2.ServeHTTP(w, r)
		}
	}))
	s.post(t.Context(), "/v1/pay", nil, "Idempotency-Key", "k").want(t, 201, "run 1", false)
	s.post(t.Context(), "/v2/pay", nil, "Idempotency-Key", "k").refused(t, idempotency.CodeKeyReused)
}

func TestMount_RefuseRepeats(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	form := idempotency.RefuseRepeats(time.Minute, idempotency.WithLocker(testutil.Locker(t)))
	service := http.NewServeMux()
	service.Handle("POST /{id}", form(counter(&runs)))
	mux := http.NewServeMux()
	mux.Handle("/follow/", http.StripPrefix("/follow", service))
	mux.Handle("/block/", http.StripPrefix("/block", service))
	s := serve(t, mux)
	s.post(t.Context(), "/follow/7", nil).want(t, 201, "run 1", false)
	s.post(t.Context(), "/block/7", nil).want(t, 201, "run 2", false)
	s.post(t.Context(), "/block/7", nil).refused(t, idempotency.CodeDuplicateSubmit)
}

// Without a prefix, a key is the same for each spelling of the request's target.
func TestMount_None(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	mux := http.NewServeMux()
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)))
	mux.Handle("POST /orders/{id}", once(counter(&runs)))
	for i, target := range []string{"/orders/a^7", "/orders/a%5E7", "http://shop.example/orders/a^7", ""} {
		r := httptest.NewRequest(http.MethodPost, "http://shop.example/orders/a%5E7", nil)
		r.RequestURI = target
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		answer{w.Code, w.Body.String(), w.Result().Header}.want(t, 201, "run 1", i > 0)
	}
}

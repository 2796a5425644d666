package idempotency_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/onelane/onelane/idempotency"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("Check ran a handler") })
	once, grab := idempotency.ByHeader("Idempotency-Key"), idempotency.LockByKey("order:{param.id}")
	who := idempotency.Principal(func(*http.Request) string { panic("Check asked for the principal") })
	others := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r) })
	}
	mux := func(pattern string, h http.Handler) *http.ServeMux {
		m := http.NewServeMux()
		m.Handle(pattern, h)
		return m
	}
	for _, tc := range []struct {
		name, pattern string
		h             http.Handler
		want          string // a part of the error
	}{
		{"on a route", "POST /orders", mux("POST /orders", once(never)), ""},
		{"around the mux", "POST /orders", once(mux("POST /orders", never)), ""},
		{"of any method", "/orders/{$}", mux("/orders/{$}", once(never)), ""},
		{"of a host", "PUT shop.example/files/{path...}", mux("PUT shop.example/files/{path...}", once(never)), ""},
		{"a mux in a mux", "POST /v1/orders", once(mux("/v1/", mux("POST /v1/orders", never))), ""},
		{"a parameter", "POST /orders/{id}/grab", mux("POST /orders/{id}/grab", grab(once(never))), ""},
		{"other keys", "POST /orders", once(mux("POST /orders", idempotency.ByHeader("B")(idempotency.ByHeader("Idempotency-Key", who)(never)))), ""},
		{"other methods", "PUT /orders", once(mux("PUT /orders", idempotency.ByHeader("Idempotency-Key", idempotency.Methods("POST"))(never))), ""},

		{"no middleware", "POST /orders", mux("POST /orders", never), "no middleware of this package that Check can see"},
		{"a safe method", "GET /orders", mux("GET /orders", once(never)), "no middleware of this package that Check can see"},
		{"hidden", "POST /orders", mux("POST /orders", others(once(never))), "no middleware of this package that Check can see"},
		{"a hidden mux", "POST /orders", others(mux("POST /orders", once(never))), "no http.ServeMux that Check can see"},
		{"no such pattern", "POST /order", mux("POST /orders", once(never)), "no http.ServeMux that Check can see"},
		{"another pattern", "POST /orders", mux("POST /", once(never)), "no http.ServeMux that Check can see"},
		{"no path", "POST", mux("POST /", once(never)), "no http.ServeMux that Check can see"},
		{"twice", "POST /orders", once(mux("POST /orders", once(never))),
			`POST /orders cannot be protected: ByHeader("Idempotency-Key") and, inside of it, ByHeader("Idempotency-Key") take the same key`},
		{"no such parameter", "POST /orders/{number}", mux("POST /orders/{number}", grab(never)),
			`LockByKey("order:{param.id}"): the route has no parameter {param.id}`},
		{"a parameter around the mux", "POST /orders/{id}", grab(mux("POST /orders/{id}", never)), "the route has no parameter {param.id}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := idempotency.Check(tc.h, tc.pattern)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "idempotency: "+tc.pattern) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Check says %v, want %q", err, tc.want)
			}
		})
	}
}

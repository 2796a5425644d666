package idempotency_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A handler that says that there is no Content-Type has none replayed either. One that removes the type
// of a middleware outside has it removed again.
func TestHeaders_NoContentType(t *testing.T) {
	t.Parallel()
	for _, outside := range []bool{false, true} {
		mux := http.NewServeMux()
		once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)))
		inner := once(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if outside {
				w.Header().Del("Content-Type")
			} else {
				w.Header()["Content-Type"] = nil
			}
			fmt.Fprint(w, "<html>")
		}))
		mux.HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
			if outside {
				w.Header().Set("Content-Type", "application/json")
			}
			inner.ServeHTTP(w, r)
		})
		s := serve(t, mux)
		first := s.order("")
		again := s.order("")
		again.want(t, 200, "<html>", true)
		was, is := first.header.Values("Content-Type"), again.header.Values("Content-Type")
		if fmt.Sprint(was) != fmt.Sprint(is) || len(was) > 0 != outside {
			t.Errorf("outside %v: the first had %q, the replay has %q", outside, was, is)
		}
	}
}

// A header that is not in canonical case is recorded, such as ETag as RFC 9110 writes it.
func TestHeaders_AnyCase(t *testing.T) {
	t.Parallel()
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, r *http.Request) {
		w.Header()["ETag"] = []string{`"7"`}
		fmt.Fprint(w, "{}")
	})
	first, retry := s.order(""), s.order("")
	for _, name := range []string{"Etag", "Content-Type"} {
		if fmt.Sprint(first.header[name]) != fmt.Sprint(retry.header[name]) {
			t.Errorf("%s: first %q, retry %q", name, first.header[name], retry.header[name])
		}
	}
}

// A browser must not guess the type of a replay either.
func TestHeaders_NoSniff(t *testing.T) {
	t.Parallel()
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, r *http.Request) { http.Error(w, "<script>", 404) })
	const name = "X-Content-Type-Options"
	first, retry := s.order(""), s.order("")
	if first.header.Get(name) != "nosniff" || retry.header.Get(name) != "nosniff" {
		t.Errorf("%s: first %q, retry %q", name, first.header.Get(name), retry.header.Get(name))
	}
}

package idempotency_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A client closes its half of the connection after the request, as nc -N does, and waits for the
// answer (RFC 9112, 9.6). net/http ends the request's context then.
func TestHalfClosed_GetsItsAnswer(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	var runs atomic.Int64
	mux := http.NewServeMux()
	mux.Handle("POST /once/{id}", idempotency.ByHeader("Idempotency-Key", l)(counter(&runs)))
	mux.Handle("POST /lock/{id}", idempotency.LockByKey("x:{header.Idempotency-Key}", l)(counter(&runs)))
	s := serve(t, mux)
	for _, path := range []string{"/once/7", "/lock/7"} {
		for i := range 30 {
			c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			must(t, err)
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k%d\r\nContent-Length: 2\r\n\r\n{}", path, i)
			must(t, c.(*net.TCPConn).CloseWrite())
			b, err := io.ReadAll(c)
			must(t, err)
			must(t, c.Close())
			if status, _, _ := strings.Cut(string(b), "\r\n"); status != "HTTP/1.1 201 Created" {
				t.Fatalf("%s, try %d: %q", path, i, b)
			}
		}
	}
	if n := runs.Load(); n != 60 {
		t.Errorf("%d runs", n)
	}
}

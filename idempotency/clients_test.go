package idempotency_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/idempotency"
)

// payments serves POST /payments with TLS on two servers, the second one over HTTP/2.
func payments(t *testing.T, runs *atomic.Int64) (h1, h2 *httptest.Server) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(memory(t)), idempotency.Principal(shop))(counter(runs)))
	h1, h2 = httptest.NewUnstartedServer(mux), httptest.NewUnstartedServer(mux)
	h2.EnableHTTP2 = true
	for _, s := range []*httptest.Server{h1, h2} {
		s.StartTLS()
		t.Cleanup(s.Close)
	}
	return h1, h2
}

// Node's http2 sends the port in :authority, and its other clients do not.
func TestClients_Node(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("install nodejs: ", err)
		}
		t.Skip("install Node.js to run this test")
	}
	for _, port := range []string{"own", "default"} {
		var runs atomic.Int64
		_, h2 := payments(t, &runs)
		_, number, err := net.SplitHostPort(h2.Listener.Addr().String())
		must(t, err)
		out, err := exec.CommandContext(t.Context(), node, "--no-warnings", "testdata/twice.mjs", number, port).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		for i, line := range lines {
			if want := " 201 run 1 " + map[bool]string{true: "ran", false: "replayed"}[i == 0]; !strings.HasSuffix(line, want) {
				t.Errorf("%s port: %q, want %q", port, line, want)
			}
		}
		if len(lines) < 3 || runs.Load() != 1 {
			t.Errorf("%s port: %d runs in\n%s", port, runs.Load(), out)
		}
	}
}

// Java's HttpClient, for one URL, sends the port in :authority over HTTP/2 and no port over HTTP/1.1.
func TestClients_Java(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	h1, h2 := payments(t, &runs)
	for i, to := range []struct {
		*httptest.Server
		host, proto string
	}{{h2, "pay.example.com:443", "HTTP/2.0"}, {h1, "pay.example.com", "HTTP/1.1"}, {h2, "pay.example.com:443", "HTTP/2.0"}} {
		r, err := http.NewRequest("POST", to.URL+"/payments", strings.NewReader("7 EUR"))
		must(t, err)
		r.Host = to.host
		r.Header.Set("Idempotency-Key", "k")
		resp, err := to.Client().Do(r)
		must(t, err)
		_ = resp.Body.Close()
		if replayed := resp.Header.Get("Idempotency-Replayed") == "true"; resp.StatusCode != 201 || resp.Proto != to.proto || replayed != (i > 0) {
			t.Errorf("%s as %s: %s, replayed %v", resp.Proto, to.host, resp.Status, replayed)
		}
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

package idempotency_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/onelane/onelane/idempotency"
)

// A redirect that repeats the call keeps its key, over two hops and to another path. OnKey gets the
// key once.
func TestTransport_RedirectKeepsTheKey(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		var keys []string
		s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			keys = append(keys, r.Header.Get("Idempotency-Key")+" "+string(body))
			switch r.URL.Path {
			case "/a":
				http.Redirect(w, r, "/b", status)
			case "/b":
				http.Redirect(w, r, "/c", status)
			}
		}))
		told := 0
		client := &http.Client{Transport: &idempotency.Transport{
			OnKey: func(*http.Request, string) error { told++; return nil }}}
		for range 2 {
			keys = nil
			resp, err := client.Post(s.url+"/a", "text/plain", strings.NewReader("pay"))
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if len(keys) != 3 || keys[0] != keys[1] || keys[1] != keys[2] || len(keys[0]) < 20 {
				t.Errorf("%d: %q", status, keys)
			}
		}
		if told != 2 {
			t.Errorf("%d: OnKey was called %d times for 2 calls", status, told)
		}
	}
}

// After 101 the body of the answer is the connection, which can be written to.
func TestTransport_SwitchingProtocols(t *testing.T) {
	t.Parallel()
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, "you said ", line)
		_ = rw.Flush()
	}))
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	resp, err := (&idempotency.Transport{}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatalf("%d: the body is a %T without Write", resp.StatusCode, resp.Body)
	}
	fmt.Fprintln(conn, "hello")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "you said hello\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// OnKey gets a key of the caller's own once, too, however many hops follow.
func TestTransport_RedirectOfACallersKey(t *testing.T) {
	t.Parallel()
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/a" {
			http.Redirect(w, r, "/b", http.StatusTemporaryRedirect)
		}
	}))
	told := 0
	client := &http.Client{Transport: &idempotency.Transport{
		OnKey: func(*http.Request, string) error { told++; return nil }}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/a", strings.NewReader("pay"))
	must(t, err)
	r.Header.Set("Idempotency-Key", "mine")
	resp, err := client.Do(r)
	must(t, err)
	must(t, resp.Body.Close())
	if told != 1 {
		t.Errorf("OnKey was called %d times for one call", told)
	}
}

package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/idempotency"
)

// Through http.Client, too, a time-out of an attempt and one of the call's own deadline are
// time-outs. The first is not "canceled": nobody hung up.
func TestTransport_TimeoutThroughClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err() // as over HTTP/2
		})
		isTimeout := func(name string, err error) {
			var ne net.Error
			if !errors.As(err, &ne) || !ne.Timeout() || !os.IsTimeout(err) {
				t.Errorf("%s: no time-out for net.Error and os.IsTimeout: %v", name, err)
			}
			if errors.Is(err, context.Canceled) {
				t.Errorf("%s: looks as if the caller hung up: %v", name, err)
			}
		}
		client := &http.Client{Transport: &idempotency.Transport{Base: hangs, Attempts: 1, Timeout: time.Second}}
		_, err := client.Do(request(t, t.Context(), "POST", "pay"))
		isTimeout("attempt", err)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		client = &http.Client{Transport: &idempotency.Transport{Base: &base{answers: []any{errCut}}, FirstPause: 5 * time.Second}}
		_, err = client.Do(request(t, ctx, "POST", "pay"))
		isTimeout("deadline in a pause", err)
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// net/http lets a caller set the values of a trailer while the body is read, such as the checksum of
// an upload. The Transport sends them.
func TestTransport_TrailerOfTheRequest(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	s := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer.Get("X-Sum")
	}))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, nil)
	must(t, err)
	r.ContentLength = -1
	r.Trailer = http.Header{"X-Sum": nil}
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader("pay"), readerFunc(func([]byte) (int, error) {
		r.Trailer.Set("X-Sum", "abc")
		return 0, io.EOF
	})))
	resp, err := (&http.Client{Transport: &idempotency.Transport{Base: s.client.Transport}}).Do(r)
	must(t, err)
	must(t, resp.Body.Close())
	if sum := <-got; sum != "abc" {
		t.Errorf("the server got the trailer %q, want abc", sum)
	}
}

// http.Client takes an answer whose Body is nil for an empty one (net/http/client.go, send). So does
// the Transport.
func TestTransport_NoBody(t *testing.T) {
	t.Parallel()
	statuses := []int{503, 201}
	stub := roundTripper(func(r *http.Request) (*http.Response, error) {
		status := statuses[0]
		statuses = statuses[1:]
		return &http.Response{StatusCode: status, Header: http.Header{}, Request: r}, nil
	})
	client := &http.Client{Transport: &idempotency.Transport{Base: stub, FirstPause: 1}}
	resp, err := client.Do(request(t, t.Context(), "POST", "pay"))
	if err != nil || resp.StatusCode != 201 {
		t.Fatalf("%v, %v", resp, err)
	}
	must(t, resp.Body.Close())
}

// After 101 the body can be closed for writing, as that of net/http can (Go 1.26). ReverseProxy does
// so when its client has sent all.
func TestTransport_SwitchingProtocolsCloseWrite(t *testing.T) {
	t.Parallel()
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
		_ = rw.Flush()
		all, _ := io.ReadAll(rw)
		fmt.Fprintf(rw, "got %s", all)
		_ = rw.Flush()
	}))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, nil)
	must(t, err)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "tcp")
	resp, err := (&idempotency.Transport{}).RoundTrip(r)
	must(t, err)
	defer resp.Body.Close()
	conn, ok := resp.Body.(interface {
		io.ReadWriter
		CloseWrite() error
	})
	if !ok {
		t.Fatalf("the body is a %T without CloseWrite", resp.Body)
	}
	fmt.Fprint(conn, "all")
	must(t, conn.CloseWrite())
	if b, err := io.ReadAll(conn); err != nil || string(b) != "got all" {
		t.Errorf("%q, %v", b, err)
	}
}

// A call with a trailer is sent once: the reader of an earlier body may set its values at any time.
func TestTransport_TrailerIsSentOnce(t *testing.T) {
	t.Parallel()
	b := &base{answers: []any{503, 201}}
	r := request(t, t.Context(), "POST", "pay")
	r.Trailer = http.Header{"X-Sum": nil}
	resp, err := (&idempotency.Transport{Base: b, FirstPause: 1}).RoundTrip(r)
	must(t, err)
	if resp.StatusCode != 503 {
		t.Errorf("got %d", resp.StatusCode)
	}
	must(t, resp.Body.Close())
}

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/idempotency"
)

// badNetwork lets many pay at once, each with three clicks, while answers are lost on the way.
func badNetwork(ctx context.Context, w *world, out io.Writer, customers int) (bool, error) {
	s, stop, err := newService(w.redis, w.dbFile, w.provider.URL)
	if err != nil {
		return false, err
	}
	defer stop()
	s.flaky = true
	server := httptest.NewUnstartedServer(s.routes())
	server.Config.ErrorLog = discard
	server.Start()
	defer server.Close()
	// The client's half: one key per call, kept over its retries.
	client := &http.Client{Transport: &idempotency.Transport{
		Base:     &http.Transport{MaxIdleConnsPerHost: 64},
		Attempts: 20, Timeout: 30 * time.Second,
		FirstPause: 5 * time.Millisecond, LongestPause: 2 * time.Second,
	}}
	defer client.CloseIdleConnections()

	const clicks = 3
	var paid, failed atomic.Int64
	var lastError atomic.Value
	var crowd sync.WaitGroup
	slots := make(chan struct{}, 32)
	for n := range customers {
		order := rand.Text() // of the page that was opened: all clicks on it are one payment
		for range clicks {
			crowd.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				status, body, err := pay(idempotency.ContextWithKey(ctx, order), client, server.URL+"/payments", fmt.Sprintf("crowd-%d", n), 995)
				if err == nil && status == http.StatusCreated {
					paid.Add(1)
					return
				}
				failed.Add(1)
				lastError.Store(fmt.Sprint(status, " ", body, " ", err))
			})
		}
	}
	crowd.Wait()
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	counts, err := w.charges("crowd-")
	if err != nil {
		return false, err
	}
	twice := 0
	for _, n := range counts {
		if n > 1 {
			twice++
		}
	}
	fmt.Fprintf(out, "1. %d customers, %d clicks each, and a network that loses one answer in four\n", customers, clicks)
	fmt.Fprintf(out, "   requests received %d, answers lost %d, clicks that got \"paid\" %d, failed %d\n", s.came.Load(), s.lost.Load(), paid.Load(), failed.Load())
	if text, ok := lastError.Load().(string); ok {
		fmt.Fprintln(out, "   the last failure:", text)
	}
	fmt.Fprintf(out, "   charged: %d customers, %d of them more than once\n", len(counts), twice)
	return twice == 0 && len(counts) == customers && failed.Load() == 0 && s.lost.Load() > 0, nil
}

// otherAmount uses a key again for something else.
func otherAmount(ctx context.Context, w *world, out io.Writer) (bool, error) {
	s, stop, err := newService(w.redis, w.dbFile, w.provider.URL)
	if err != nil {
		return false, err
	}
	defer stop()
	server := httptest.NewServer(s.routes())
	defer server.Close()
	client := &http.Client{Transport: &idempotency.Transport{Base: &http.Transport{}}}
	defer client.CloseIdleConnections()
	ctx = idempotency.ContextWithKey(ctx, rand.Text())
	if status, body, err := pay(ctx, client, server.URL+"/payments", "eve", 100); status != http.StatusCreated {
		return false, fmt.Errorf("the first payment: %d %s %w", status, body, err)
	}
	status, body, err := pay(ctx, client, server.URL+"/payments", "eve", 999900)
	if err != nil {
		return false, err
	}
	var p struct{ Code, Correction string }
	_ = json.Unmarshal([]byte(body), &p)
	fmt.Fprintf(out, "2. The same key with another amount\n   %d %s: %s\n", status, p.Code, p.Correction)
	return status == http.StatusUnprocessableEntity && p.Code == "idempotency_key_reused", nil
}

// crash lets the service die after it has charged and before it has answered. A second one is up,
// and the client's transport sends the call again until the answer has the status that is wanted.
func crash(ctx context.Context, w *world, out io.Writer, path string, want int, title string) (bool, error) {
	dying, err := startChild(ctx, w, true)
	if err != nil {
		return false, err
	}
	defer dying.stop()
	living, err := startChild(ctx, w, false)
	if err != nil {
		return false, err
	}
	defer living.stop()
	// A proxy or DNS before the services finds one that is up.
	base := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		addr := dying.addr
		if dying.exited() {
			addr = living.addr
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	fmt.Fprintln(out, title)
	client := &http.Client{Transport: &idempotency.Transport{
		Base:     &telling{base: base, out: out},
		Attempts: 10, Timeout: 30 * time.Second,
		FirstPause: 50 * time.Millisecond, LongestPause: 2 * time.Second,
	}}
	customer := "crash" + strings.ReplaceAll(path, "/", "-")
	status, body, err := pay(ctx, client, "http://payments.example"+path, customer, 4200)
	if err != nil {
		return false, err
	}
	counts, err := w.charges(customer)
	if err != nil {
		return false, err
	}
	n := 0
	for _, charged := range counts {
		n += charged
	}
	fmt.Fprintf(out, "   the client sees %d %s\n", status, strings.TrimSpace(body))
	fmt.Fprintf(out, "   the customer was charged %d time(s)\n", n)
	if !dying.crashed() {
		return false, errors.New("the service did not die as it should have")
	}
	return n == 1 && status == want, nil
}

// pay sends one payment.
func pay(ctx context.Context, client *http.Client, url, customer string, cents int) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(fmt.Sprintf(`{"cents":%d}`, cents)))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+customer)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// telling prints each attempt.
type telling struct {
	base  http.RoundTripper
	out   io.Writer
	tries int
}

func (t *telling) RoundTrip(r *http.Request) (*http.Response, error) {
	t.tries++
	resp, err := t.base.RoundTrip(r)
	switch {
	case err != nil:
		fmt.Fprintf(t.out, "   attempt %d, key %.8s…: no answer (%v)\n", t.tries, r.Header.Get("Idempotency-Key"), err)
	default:
		again := ""
		if after := resp.Header.Get("Retry-After"); after != "" {
			again = ", again after " + after + " s"
		}
		fmt.Fprintf(t.out, "   attempt %d, key %.8s…: %d%s\n", t.tries, r.Header.Get("Idempotency-Key"), resp.StatusCode, again)
	}
	return resp, err
}

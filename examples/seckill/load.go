package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load is the crowd: every buyer clicks, clicks again before the answer is there, and once it is,
// retries.
type load struct {
	options
	addrs  []string
	client *http.Client
	run    string // part of every key and buyer, so that two sales on one Redis and database do not mix

	requests, created, replayed, refused, soldOut, failed atomic.Int64

	// Requests that wait for longer than stallAfter now and in all, and answers that were an error,
	// also those after which the buyer tried again.
	stalled, stalls, refusals atomic.Int64

	mu        sync.Mutex
	latencies []time.Duration
	lastError string
	underWay  int           // requests
	since     time.Time     // when there was none before
	busy      time.Duration // in which there were some, before since
	selling   time.Duration // busy, until the last order was placed
}

// stallAfter is how long a request waits before it counts as stalled.
const stallAfter = time.Second

func newLoad(o options, addrs []string) *load {
	return &load{
		options: o, addrs: addrs, run: fmt.Sprint(time.Now().UnixNano()),
		client: &http.Client{
			Timeout:   30 * time.Second,
			Transport: &http.Transport{MaxIdleConnsPerHost: o.clients * o.submits},
		},
	}
}

// total is the number of requests if none has to be sent again.
func (l *load) total() int { return l.buyers * l.submits }

// shop lets all buyers buy and returns when they have their answers, or ctx ends.
func (l *load) shop(ctx context.Context) {
	buyers := make(chan int)
	var crowd sync.WaitGroup
	for range min(l.clients, l.buyers) {
		crowd.Go(func() {
			for n := range buyers {
				l.buyer(ctx, n)
			}
		})
	}
	began := time.Now()
	for n := range l.buyers {
		// Buyers arrive in waves of as many as can send requests at the same time.
		arrived := n / l.clients * l.clients
		if !waitUntil(ctx, began.Add(l.over*time.Duration(arrived)/time.Duration(l.buyers))) {
			break
		}
		buyers <- n
	}
	close(buyers)
	crowd.Wait()
	l.client.CloseIdleConnections()
}

// waitUntil reports whether the time has come; it has not if ctx ends first.
func waitUntil(ctx context.Context, due time.Time) bool {
	if wait := time.Until(due); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

func (l *load) buyer(ctx context.Context, n int) {
	var clicks sync.WaitGroup
	for click := range max(1, l.submits-1) {
		clicks.Go(func() { l.submit(ctx, n, click) })
	}
	clicks.Wait()
	if l.submits > 1 {
		l.submit(ctx, n, l.submits-1)
	}
}

// submit sends one request, and again, twice at most, when the answer is an error of the server.
func (l *load) submit(ctx context.Context, buyer, click int) {
	for try := 0; ; try++ {
		status, replayed, err := l.timed(ctx, buyer, l.addrs[(buyer+click+try)%len(l.addrs)])
		if ctx.Err() != nil {
			return // the sale was stopped, so the answer says nothing of the service
		}
		switch {
		case err != nil && try < 2 && ctx.Err() == nil:
			time.Sleep(time.Duration(try+1) * 50 * time.Millisecond)
			continue
		case err != nil:
			l.failed.Add(1)
		case replayed:
			l.replayed.Add(1)
		case status == http.StatusCreated:
			l.created.Add(1)
		case status == http.StatusGone:
			l.soldOut.Add(1)
		default:
			l.refused.Add(1)
		}
		return
	}
}

// timed is post, counted.
func (l *load) timed(ctx context.Context, buyer int, addr string) (status int, replayed bool, err error) {
	stall := time.AfterFunc(stallAfter, func() { l.stalled.Add(1); l.stalls.Add(1) })
	began := time.Now()
	l.mu.Lock()
	if l.underWay++; l.underWay == 1 {
		l.since = began
	}
	l.mu.Unlock()
	status, replayed, err = l.post(ctx, buyer, addr)
	if !stall.Stop() {
		l.stalled.Add(-1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && !replayed && status == http.StatusCreated {
		l.selling = l.busy + time.Since(l.since)
	}
	if l.underWay--; l.underWay == 0 {
		l.busy += time.Since(l.since)
	}
	if ctx.Err() != nil {
		return status, replayed, err
	}
	l.requests.Add(1)
	l.latencies = append(l.latencies, time.Since(began))
	if err != nil {
		l.refusals.Add(1)
		l.lastError = err.Error()
	}
	return status, replayed, err
}

// post returns an error for every answer that is not one of the sale's.
func (l *load) post(ctx context.Context, buyer int, addr string) (status int, replayed bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/orders", strings.NewReader(`{"units":1}`))
	if err != nil {
		return 0, false, err
	}
	r.Host = "shop.example" // as a load balancer before all processes passes it on; a key belongs to a host
	r.Header.Set("Authorization", fmt.Sprintf("Bearer buyer-%s-%d", l.run, buyer))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", fmt.Sprintf(`"%s-%d"`, l.run, buyer))
	answer, err := l.client.Do(r)
	if err != nil {
		return 0, false, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	if err != nil {
		return 0, false, err
	}
	replayed = answer.Header.Get("Idempotency-Replayed") == "true"
	switch answer.StatusCode {
	case http.StatusCreated, http.StatusGone:
		return answer.StatusCode, replayed, nil
	case http.StatusConflict: // the kit's: a duplicate while the first is under way
		var problem struct{ Code string }
		if json.Unmarshal(body, &problem) == nil && strings.HasSuffix(problem.Code, "_in_flight") {
			return answer.StatusCode, false, nil
		}
	}
	return 0, false, fmt.Errorf("HTTP %d: %s", answer.StatusCode, reason(body))
}

// reason is the sentence in the body of an error: the kit's problem document, or the service's own.
func reason(body []byte) string {
	var said struct{ Detail, Error, Title string }
	if json.Unmarshal(body, &said) == nil && said.Detail+said.Error+said.Title != "" {
		return cmp.Or(said.Detail, said.Error, said.Title)
	}
	return strings.TrimSpace(string(body))
}

// progress writes a line about the sale now and then until done is closed.
func (l *load) progress(w io.Writer, done <-chan struct{}) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			fmt.Fprintf(w, "\r%60s\r", "")
			return
		case <-tick.C:
			fmt.Fprintf(w, "\r%d of %d requests, %d created, %d sold out ", l.requests.Load(), l.total(), l.created.Load(), l.soldOut.Load())
		}
	}
}

// percentile is the nearest rank of p in sorted durations, in milliseconds.
func percentile(sorted []time.Duration, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := min(len(sorted)-1, int(p*float64(len(sorted))))
	return float64(sorted[i].Microseconds()) / 1000
}

// last is the last error that a buyer saw.
func (l *load) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastError
}

func (l *load) result(took time.Duration) result {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.latencies)
	lastError := ""
	if l.failed.Load() > 0 { // otherwise the buyers who saw an error tried again, with success
		lastError = l.lastError
	}
	rate := 0.0
	if l.selling > 0 {
		rate = float64(l.created.Load()) / l.selling.Seconds()
	}
	return result{
		Rate: rate, Guarded: l.guarded, Unguarded: l.unguarded, Buyers: l.buyers, Stock: l.stock, Processes: l.procs,
		Requests: l.requests.Load(), Created: l.created.Load(), Replayed: l.replayed.Load(), Refused: l.refused.Load(),
		SoldOut: l.soldOut.Load(), Errors: l.failed.Load(), LastError: lastError,
		Seconds: took.Seconds(), PerSecond: float64(l.requests.Load()) / took.Seconds(),
		P50: percentile(l.latencies, 0.50), P99: percentile(l.latencies, 0.99),
	}
}

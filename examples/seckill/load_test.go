package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// crowd returns a load of one buyer with one click, on a service of the test.
func crowd(t *testing.T, h http.HandlerFunc) *load {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	o := options{buyers: 1, stock: 1, submits: 1, clients: 1, procs: 1}
	return newLoad(o, []string{strings.TrimPrefix(server.URL, "http://")})
}

func TestLoad_RefusalsAndLastError(t *testing.T) {
	for body, says := range map[string]string{
		`{"detail":"no majority","title":"Oh"}`: "HTTP 503: no majority",
		`{"error":"core: no majority"}`:         "HTTP 503: core: no majority",
		`{"title":"Unavailable"}`:               "HTTP 503: Unavailable",
		"try later\n":                           "HTTP 503: try later",
	} {
		answers := 0
		l := crowd(t, func(w http.ResponseWriter, _ *http.Request) {
			if answers++; answers < 3 {
				http.Error(w, body, http.StatusServiceUnavailable)
				return
			}
			w.WriteHeader(http.StatusCreated)
		})
		l.shop(t.Context())
		if l.refusals.Load() != 2 || l.failed.Load() != 0 || l.created.Load() != 1 ||
			l.last() != says {
			t.Errorf("%d refusals, %d failed, last error %q, want 2, 0 and %q",
				l.refusals.Load(), l.failed.Load(), l.last(), says)
		}
		if r := l.result(time.Second); r.LastError != "" {
			t.Errorf("all buyers were served, and the result has the error %q", r.LastError)
		}
	}
}

func TestLoad_Stalls(t *testing.T) {
	answer := make(chan struct{})
	l := crowd(t, func(w http.ResponseWriter, _ *http.Request) {
		<-answer
		w.WriteHeader(http.StatusCreated)
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.shop(t.Context())
	}()
	for l.stalled.Load() != 1 || l.stalls.Load() != 1 {
		time.Sleep(time.Millisecond)
	}
	close(answer)
	<-done
	if l.stalled.Load() != 0 || l.stalls.Load() != 1 || l.refusals.Load() != 0 {
		t.Errorf("%d stalled, %d stalls, %d refusals",
			l.stalled.Load(), l.stalls.Load(), l.refusals.Load())
	}
}

// A stopped sale has no errors of the buyers who were under way.
func TestLoad_Stopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := crowd(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not see the client go
		cancel()
		<-r.Context().Done()
	})
	l.shop(ctx)
	if l.failed.Load() != 0 || l.refusals.Load() != 0 || l.requests.Load() != 0 {
		t.Errorf("%d failed, %d refusals, %d requests",
			l.failed.Load(), l.refusals.Load(), l.requests.Load())
	}
}

package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
)

// paying is a server, seen from a client. It answers the first request after some time.
type paying struct {
	began time.Time
	takes time.Duration // of the first request
	down  time.Duration // no connection until then
	lease time.Duration // it dies in the first request: in flight until then, and unknown after it
}

func (p *paying) RoundTrip(r *http.Request) (*http.Response, error) {
	first := p.began.IsZero()
	if first {
		p.began = time.Now()
	}
	answer := func(status int, header http.Header) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(""))}, nil
	}
	running := http.Header{"Retry-After": {"1"}}
	switch since := time.Since(p.began); {
	case since < p.down:
		return nil, errors.New("connection refused")
	case p.lease > 0 && first:
		return nil, io.ErrUnexpectedEOF
	case p.lease > 0 && since < p.lease:
		return answer(http.StatusConflict, running)
	case p.lease > 0:
		return answer(http.StatusConflict, http.Header{})
	case first:
		select {
		case <-time.After(p.takes):
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		}
	case since < p.takes:
		return answer(http.StatusConflict, running)
	}
	return answer(http.StatusCreated, http.Header{})
}

// The zero Transport waits for a handler of MaxRun, for the lease of a server that crashed, and for
// one that is restarted.
func TestTransport_Patience(t *testing.T) {
	for name, c := range map[string]struct {
		server paying
		want   int
	}{
		"a slow payment":     {paying{takes: 15 * time.Second}, http.StatusCreated},
		"one of MaxRun":      {paying{takes: 5 * time.Minute}, http.StatusCreated},
		"a crash":            {paying{lease: 10 * time.Second}, http.StatusConflict},
		"a restart":          {paying{down: 10 * time.Second}, http.StatusCreated},
		"one that never end": {paying{takes: time.Hour}, http.StatusConflict},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				resp, err := (&idempotency.Transport{Base: &c.server}).RoundTrip(request(t, t.Context(), http.MethodPost, "7 EUR"))
				check.OK(t, "RoundTrip", err)
				running := resp.Header.Get("Retry-After") != ""
				if took := time.Since(began); resp.StatusCode != c.want || running != (c.server.takes == time.Hour) || took > 8*time.Minute {
					t.Errorf("after %v: %d %v, want %d", took, resp.StatusCode, resp.Header, c.want)
				}
			})
		})
	}
}

// The caller's deadline ends the patience, and a number of attempts is that number.
func TestTransport_PatienceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		resp, err := (&idempotency.Transport{Base: &paying{takes: time.Hour}}).RoundTrip(request(t, ctx, http.MethodPost, ""))
		if took := time.Since(began); err != nil || resp.StatusCode != http.StatusConflict || took > 20*time.Second {
			t.Errorf("after %v: %+v, %v", took, resp, err)
		}
		b := &base{answers: []any{retryAfter(http.StatusConflict, "1")}}
		resp, err = (&idempotency.Transport{Base: b, Attempts: 4}).RoundTrip(request(t, t.Context(), http.MethodPost, ""))
		if err != nil || resp.StatusCode != http.StatusConflict || len(b.calls) != 4 {
			t.Errorf("%d attempts: %+v, %v", len(b.calls), resp, err)
		}
	})
}

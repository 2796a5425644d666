package idempotency_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/idempotency"
)

// The zero Transport gives concurrent calls a key each, on a socket. It does not change.
func TestTransport_Zero(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	times := make(map[string]int) // that each key came
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Idempotency-Key")
		if times[key]++; times[key] == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	rt := &idempotency.Transport{}
	client := &http.Client{Transport: rt}
	const calls = 8
	var crowd sync.WaitGroup
	for range calls {
		crowd.Go(func() {
			resp, err := client.Post(s.url, "text/plain", strings.NewReader("pay"))
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("%v, %v", resp, err)
				return
			}
			_ = resp.Body.Close()
		})
	}
	crowd.Wait()
	for key, n := range times {
		if n != 2 || len(key) < 24 {
			t.Errorf("the key %q came %d times", key, n)
		}
	}
	if len(times) != calls {
		t.Errorf("%d calls have %d keys", calls, len(times))
	}
	if !reflect.DeepEqual(rt, &idempotency.Transport{}) {
		t.Errorf("the Transport changed: %+v", rt)
	}
}

// The defaults are 9 attempts of 10 s, a first pause of 100 ms and a longest of 10 s.
func TestTransport_Defaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ends []time.Time
		began := time.Now()
		var pauses []time.Duration
		hangs := roundTripper(func(r *http.Request) (*http.Response, error) {
			if len(ends) > 0 {
				pauses = append(pauses, time.Since(ends[len(ends)-1]))
			}
			<-r.Context().Done()
			ends = append(ends, time.Now())
			return nil, r.Context().Err()
		})
		_, err := (&idempotency.Transport{Base: hangs}).RoundTrip(request(t, t.Context(), "POST", ""))
		if !errors.Is(err, context.DeadlineExceeded) || len(ends) != 9 || ends[0].Sub(began) != 10*time.Second {
			t.Fatalf("%v after %d attempts; the first ended after %v", err, len(ends), ends[0].Sub(began))
		}
		for i, most := range []time.Duration{100e6, 200e6, 400e6} {
			if pauses[i] < most*3/4 || pauses[i] > most {
				t.Errorf("pause %d is %v, want %v to %v", i, pauses[i], most*3/4, most)
			}
		}
		for after, attempts := range map[string]int{"10": 9, "11": 1} {
			b := &base{answers: []any{retryAfter(503, after)}}
			_, err := (&idempotency.Transport{Base: b}).RoundTrip(request(t, t.Context(), "POST", ""))
			if err != nil || len(b.calls) != attempts {
				t.Errorf("Retry-After: %s: %d attempts, want %d (%v)", after, len(b.calls), attempts, err)
			}
		}
	})
}

// A wrong field is an error of each call. The call is not sent, and its body is closed.
func TestTransport_WrongField(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want string
		rt   idempotency.Transport
	}{
		{`Header is "a b": set`, idempotency.Transport{Header: "a b"}},
		{`Header is "Host": set`, idempotency.Transport{Header: "host"}},
		{"Attempts is -1: set", idempotency.Transport{Attempts: -1}},
		{"Timeout is -1ns: set", idempotency.Transport{Timeout: -1}},
		{"FirstPause is -1ns: set", idempotency.Transport{FirstPause: -1}},
		{"LongestPause is -1ns: set", idempotency.Transport{LongestPause: -1}},
		{"FirstPause is 2s: it must not be longer than LongestPause, 1s; set", idempotency.Transport{FirstPause: 2 * time.Second, LongestPause: time.Second}},
		{"FirstPause is 11s: it must not be longer than LongestPause, 10s; set", idempotency.Transport{FirstPause: 11 * time.Second}},
		{"FirstPause is 100ms: it must not be longer than LongestPause, 1ms; set", idempotency.Transport{LongestPause: time.Millisecond}},
		{"RetryStatuses has 0: list", idempotency.Transport{RetryStatuses: []int{502, 0}}},
		{"RetryStatuses has 199: list", idempotency.Transport{RetryStatuses: []int{199}}},
		{"RetryStatuses has 600: list", idempotency.Transport{RetryStatuses: []int{600}}},
	} {
		for _, method := range []string{"POST", "", "GET", "HEAD", "OPTIONS", "TRACE"} {
			b := &base{answers: []any{200}}
			tc.rt.Base = b
			closed := 0
			r := request(t, t.Context(), method, "")
			r.Body = &closing{strings.NewReader("x"), func() { closed++ }}
			resp, err := tc.rt.RoundTrip(r)
			if err == nil || !strings.HasPrefix(err.Error(), "idempotency: Transport."+tc.want) || resp != nil {
				t.Errorf("%s: %v, %v; want %q", method, resp, err, tc.want)
			}
			if closed != 1 || len(b.calls) > 0 {
				t.Errorf("%s: %q: the body was closed %d times after %d calls", method, tc.want, closed, len(b.calls))
			}
		}
	}
}

// The largest and the smallest values are allowed.
func TestTransport_LimitsOfFields(t *testing.T) {
	t.Parallel()
	for _, rt := range []idempotency.Transport{
		{Attempts: 1, Timeout: math.MaxInt64, FirstPause: 1, LongestPause: 1, RetryStatuses: []int{200, 599}},
		{Attempts: math.MaxInt, FirstPause: math.MaxInt64, LongestPause: math.MaxInt64},
	} {
		rt.Base = &base{answers: []any{201}}
		if resp, err := rt.RoundTrip(request(t, t.Context(), "POST", "")); err != nil || resp.StatusCode != 201 {
			t.Errorf("%v, %v", resp, err)
		}
	}
}

// idle counts the calls of CloseIdleConnections.
type idle struct {
	http.RoundTripper
	closed int
}

func (i *idle) CloseIdleConnections() { i.closed++ }

// The connections that http.Client closes are those of Base.
func TestTransport_CloseIdleConnections(t *testing.T) {
	t.Parallel()
	pool := &idle{}
	(&http.Client{Transport: &idempotency.Transport{Base: pool}}).CloseIdleConnections()
	if pool.closed != 1 {
		t.Errorf("Base was told %d times", pool.closed)
	}
	without := roundTripper(func(*http.Request) (*http.Response, error) { return nil, io.EOF })
	(&http.Client{Transport: &idempotency.Transport{Base: without}}).CloseIdleConnections() // no panic
}

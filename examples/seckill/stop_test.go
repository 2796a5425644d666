package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
)

// stopped starts a sale while the test holds the lock on the stock, and stops it when buyers wait.
// The kit finishes their requests later.
func stopped(t *testing.T, ask func(int, string, string, string) *http.Response, stock *core.Locker) (*core.Lock, *bufio.Scanner) {
	t.Helper()
	waits := regexp.MustCompile(`(?m)^onelane_waiters(\{.*\})? ([3-9]|1\d|20)$`)
	waiting := func() bool {
		metrics, err := io.ReadAll(ask(http.StatusOK, "GET", "/metrics", "").Body)
		if err != nil {
			t.Fatal(err)
		}
		return waits.Match(metrics)
	}
	for {
		lock, err := stock.Acquire(t.Context(), "stock:42")
		if err != nil {
			t.Fatal(err)
		}
		ask(http.StatusAccepted, "POST", "/api/sale", shortSale)
		for !waiting() {
			time.Sleep(10 * time.Millisecond)
		}
		ask(http.StatusNoContent, "DELETE", "/api/sale", "")
		body := ask(http.StatusOK, "GET", "/api/events", "").Body
		end := time.AfterFunc(20*time.Second, func() { _ = body.Close() })
		t.Cleanup(func() { end.Stop() })
		events := bufio.NewScanner(body)
		for s := (showState{Running: true}); s.Running; {
			if !nextState(t, events, &s) {
				t.Fatal("a stopped sale does not end")
			}
		}
		if waiting() {
			return lock, events
		}
		// The machine was so busy that the buyers gave up, as they do after 5 s.
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

const shortSale = `{"buyers":20,"stock":100,"submits":2,"seconds":0,"clients":20}`

// nextState reads the next event. It returns false when there is none any more.
func nextState(t *testing.T, events *bufio.Scanner, s *showState) bool {
	t.Helper()
	for events.Scan() {
		if data, ok := strings.CutPrefix(events.Text(), "data: "); ok {
			*s = showState{}
			if err := json.Unmarshal([]byte(data), s); err != nil {
				t.Fatal(err)
			}
			return true
		}
	}
	return false
}

// A page hears of the orders that the kit finishes after a sale was stopped.
func TestServe_StoppedSale(t *testing.T) {
	o, err := parse([]string{"-serve", ":0"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	stock := onOneRedis(t, &o)
	lock, events := stopped(t, page(t, o), stock)
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	var s showState
	for s.Guarded.Sold == 0 {
		if !nextState(t, events, &s) {
			t.Fatal("orders were placed after the sale, and no page hears of them")
		}
	}
}

// Orders of a sale that was stopped are no second orders of the next sale's buyers.
func TestServe_StartAfterStop(t *testing.T) {
	o, err := parse([]string{"-serve", ":0"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	stock := onOneRedis(t, &o)
	ask := page(t, o)
	lock, _ := stopped(t, ask, stock)
	ask(http.StatusAccepted, "POST", "/api/sale", shortSale)
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := watch(t, ask, func(s showState) bool { return !s.Running })
	if s.Guarded.Doubled != 0 || s.Guarded.Oversold != 0 {
		t.Errorf("with the kit %d buyers were charged twice, %d units oversold", s.Guarded.Doubled, s.Guarded.Oversold)
	}
}

// A client that sends half a request, as a phone that loses its network, does not stop the page.
func TestServe_SlowStart(t *testing.T) {
	o, err := parse([]string{"-serve", ":0"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	url := served(t, o)
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /api/sale HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 20\r\nExpect: 100-continue\r\n\r\n")
	// The server says 100 when the handler reads the body.
	if said, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(said, "100") {
		t.Fatal(said, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatalf("while a client is slow the page gets nothing: %v", err)
	}
	_ = answer.Body.Close()
}

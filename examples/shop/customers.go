package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/onelane/onelane/idempotency"
)

const (
	atOnce  = 8  // customers who order at the same time
	patient = 40 // attempts of a customer who waits for a final answer
)

// crowd is what the customers know.
type crowd struct {
	mu     sync.Mutex
	came   int
	states map[string]string // by order: the state in the answer to its buyer
}

// rush lets customers buy until enough reports true. One in ten has no card that works. If there may be
// impatient ones, every second one is. It returns how many clicks got which answer.
func (w *world) rush(ctx context.Context, impatient bool, enough func() bool) map[int]int {
	answers := make(map[int]int)
	next := func() (n int, ok bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if ctx.Err() != nil || enough() {
			return 0, false
		}
		w.came++
		return w.came, true
	}
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for n, ok := next(); ok; n, ok = next() {
				for _, status := range w.visit(ctx, n, n%10 == 0, impatient && n%4 < 2) {
					w.mu.Lock()
					answers[status]++
					w.mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return answers
}

// visit is the customer n, who clicks twice. An impatient one clicks once and never comes back.
func (w *world) visit(ctx context.Context, n int, broke, impatient bool) (statuses []int) {
	buyer, clicks, attempts := fmt.Sprint("buyer-", n), 2, patient
	if broke {
		buyer = fmt.Sprint(noCard, n)
	}
	if impatient {
		clicks, attempts = 1, 1
	}
	key := rand.Text() // of the page: both clicks are one order
	answers := make(chan int, clicks)
	for range clicks {
		go func() {
			status, _ := w.buy(ctx, buyer, key, 1+int64(n%2), attempts)
			answers <- status
		}()
	}
	for range clicks {
		statuses = append(statuses, <-answers)
	}
	return statuses
}

// buy sends an order with its key, again and again until the answer is final. Without an answer the
// status is 0.
func (w *world) buy(ctx context.Context, buyer, key string, units int64, attempts int) (status int, text string) {
	client := &http.Client{Transport: &idempotency.Transport{
		Attempts: attempts, Timeout: patience, FirstPause: 20 * time.Millisecond, LongestPause: 5 * time.Second,
		// The balancer's 502 may mean anything, and the shop heeds the key.
		RetryStatuses: []int{http.StatusBadGateway, http.StatusGatewayTimeout},
	}}
	body := strings.NewReader(fmt.Sprintf(`{"units":%d}`, units))
	r, err := http.NewRequestWithContext(idempotency.ContextWithKey(ctx, key), http.MethodPost, w.url+"/orders", body)
	if err != nil {
		return 0, err.Error()
	}
	r.Header.Set("Authorization", "Bearer "+buyer)
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	var said struct{ Order, State, Error string }
	if err := json.NewDecoder(resp.Body).Decode(&said); err == nil && said.Order != "" {
		w.mu.Lock()
		w.states[said.Order] = said.State
		w.mu.Unlock()
	}
	return resp.StatusCode, said.Error
}

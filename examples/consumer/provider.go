package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
)

// Charge is money taken for an order.
type Charge struct{ ID, Order string }

// bank is a payment provider. It takes money once per idempotency key, and each time if it gets no
// key. It answers what happened to an order.
type bank struct {
	*httptest.Server

	mu      sync.Mutex
	charges map[string][]Charge // by order
	keys    map[string]Charge
}

func newBank() *bank {
	b := &bank{charges: make(map[string][]Charge), keys: make(map[string]Charge)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges/{order}", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(b.charge(r.PathValue("order"), r.Header.Get("Idempotency-Key")))
	})
	mux.HandleFunc("GET /charges/{order}", func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		known := b.charges[r.PathValue("order")]
		b.mu.Unlock()
		if len(known) == 0 {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(known[0])
	})
	b.Server = httptest.NewServer(mux)
	return b
}

func (b *bank) charge(order, key string) Charge {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, ok := b.keys[key]; ok {
		return c
	}
	c := Charge{ID: fmt.Sprintf("%s-%d", order, len(b.charges[order])+1), Order: order}
	b.charges[order] = append(b.charges[order], c)
	if key != "" {
		b.keys[key] = c
	}
	return c
}

// counts returns how many orders with this prefix were charged, and how many of them twice or more.
func (b *bank) counts(prefix string) (charged, twice int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for order, c := range b.charges {
		if !strings.HasPrefix(order, prefix) {
			continue
		}
		charged++
		if len(c) > 1 {
			twice++
		}
	}
	return charged, twice
}

// provider is what a consumer knows of the bank.
type provider struct{ url string }

var errNoCharge = errors.New("the provider knows no such charge")

func (p provider) charge(ctx context.Context, order, key string) (Charge, error) {
	return p.ask(ctx, http.MethodPost, order, key)
}

func (p provider) find(ctx context.Context, order string) (Charge, error) {
	return p.ask(ctx, http.MethodGet, order, "")
}

func (p provider) ask(ctx context.Context, method, order, key string) (c Charge, err error) {
	r, err := http.NewRequestWithContext(ctx, method, p.url+"/charges/"+url.PathEscape(order), nil)
	if err != nil {
		return c, err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return c, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return c, json.NewDecoder(resp.Body).Decode(&c)
	case http.StatusNotFound:
		return c, errNoCharge
	}
	return c, fmt.Errorf("the provider answered %s", resp.Status)
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// provider is a payment provider: a server of its own, as Stripe is one. It takes money once per
// idempotency key and can be asked what happened to a key.
type provider struct {
	*httptest.Server

	mu      sync.Mutex
	charges map[string]Charge // by idempotency key
}

// Charge is money taken from a customer.
type Charge struct {
	ID       int    `gorm:"primaryKey" json:"payment"`
	Customer string `gorm:"index" json:"customer"`
	Cents    int    `json:"cents"`
}

func newProvider() *provider {
	p := &provider{charges: make(map[string]Charge)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", p.charge)
	mux.HandleFunc("GET /charges/{key}", p.show)
	p.Server = httptest.NewServer(mux)
	return p
}

func (p *provider) charge(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	var c Charge
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil || key == "" {
		http.Error(w, "a charge needs a key and a body", http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	known, ok := p.charges[key]
	if !ok {
		c.ID = len(p.charges) + 1
		p.charges[key], known = c, c
	}
	p.mu.Unlock()
	_ = json.NewEncoder(w).Encode(known)
}

func (p *provider) show(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	c, ok := p.charges[r.PathValue("key")]
	p.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(c)
}

// counts returns how often each customer with this prefix was charged.
func (p *provider) counts(prefix string) map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := make(map[string]int)
	for _, c := range p.charges {
		if strings.HasPrefix(c.Customer, prefix) {
			n[c.Customer]++
		}
	}
	return n
}

// providerClient is what the service knows of the provider.
type providerClient struct{ url string }

var errNoCharge = errors.New("the provider knows no such charge")

// charge takes money once per key.
func (p providerClient) charge(ctx context.Context, key string, c Charge) (Charge, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return Charge{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/charges", bytes.NewReader(body))
	if err != nil {
		return Charge{}, err
	}
	req.Header.Set("Idempotency-Key", key)
	return p.send(req)
}

// find returns the charge of a key, or errNoCharge.
func (p providerClient) find(ctx context.Context, key string) (Charge, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/charges/"+key, nil)
	if err != nil {
		return Charge{}, err
	}
	return p.send(req)
}

func (p providerClient) send(req *http.Request) (Charge, error) {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Charge{}, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return Charge{}, errNoCharge
	default:
		return Charge{}, fmt.Errorf("the provider answered %s", resp.Status)
	}
	var c Charge
	return c, json.NewDecoder(resp.Body).Decode(&c)
}

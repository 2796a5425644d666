package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

// charge is what became of an idempotency key at the provider.
type charge struct {
	Buyer string `json:"buyer,omitempty"`
	Cents int64  `json:"cents,omitempty"`
	State string `json:"state"`
}

// A key at the provider is in one of these states forever.
const (
	charged = "charged"
	refused = "refused" // the card is declined
	closed  = "closed"  // it was not charged, and never will be
)

// noCard begins the name of a buyer whose card is declined.
const noCard = "no-card-"

// provider stands for a payment provider, such as Stripe or Alipay. It decides about each key once.
type provider struct {
	down    atomic.Bool
	reached func(moment, caller string) (killed bool) // where a caller may be killed

	mu    sync.Mutex
	keys  map[string]charge
	taken []string // the key of each charge, as often as money was taken
}

func newProvider() *provider {
	return &provider{keys: make(map[string]charge), reached: func(string, string) bool { return false }}
}

// ServeHTTP answers POST /charges, and DELETE /charges/{key}.
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	var c charge
	switch {
	case p.down.Load():
		http.Error(w, "down", http.StatusBadGateway)
		return
	case r.Method == http.MethodDelete:
		key, c.State = strings.TrimPrefix(r.URL.Path, "/charges/"), closed
		c = p.decide(key, c)
		p.reached(momentClosed, r.UserAgent())
	default:
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil || key == "" {
			http.Error(w, "a charge needs a key and a body", http.StatusBadRequest)
			return
		}
		if p.reached(momentAsked, r.UserAgent()) {
			return // the request is lost with its caller
		}
		if c.State = charged; strings.HasPrefix(c.Buyer, noCard) {
			c.State = refused
		}
		c = p.decide(key, c)
		p.reached(momentCharged, r.UserAgent())
	}
	_ = json.NewEncoder(w).Encode(c)
	_ = http.NewResponseController(w).Flush()
	p.reached(momentAnswered, r.UserAgent())
}

// decide returns what became of a key: the first decision stays.
func (p *provider) decide(key string, c charge) charge {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.keys[key]; ok {
		return known
	}
	p.keys[key] = c
	if c.State == charged {
		p.taken = append(p.taken, key)
	}
	return c
}

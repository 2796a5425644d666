package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/onelane/onelane/idempotency"
)

// payments is what the shop knows of the payment provider.
type payments struct {
	url    string
	name   string // of the instance
	client *http.Client
}

// newPayments returns a client that asks again under the same key: three times within the timeout of
// an attempt each.
func newPayments(url, name string, timeout time.Duration) payments {
	return payments{url, name, &http.Client{Transport: &idempotency.Transport{Attempts: 3, Timeout: timeout}}}
}

// charge takes money once per key, however often it is called. It returns what the order becomes. After
// an error nobody knows: call it again with the same key.
func (p payments) charge(ctx context.Context, key, buyer string, cents int64) (state string, err error) {
	body, err := json.Marshal(charge{Buyer: buyer, Cents: cents})
	if err != nil {
		return "", err
	}
	return p.send(ctx, http.MethodPost, "/charges", key, body)
}

// stop asks what became of a charge, and closes the key forever if it was not charged. It returns what
// the order becomes.
func (p payments) stop(ctx context.Context, key string) (state string, err error) {
	return p.send(ctx, http.MethodDelete, "/charges/"+url.PathEscape(key), key, nil)
}

func (p payments) send(ctx context.Context, method, path, key string, body []byte) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	r.Header.Set("Idempotency-Key", key) // without quotes, as most providers take it
	r.Header.Set("User-Agent", p.name)
	resp, err := p.client.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var c charge
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the provider answered %s", resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&c); err != nil {
		return "", fmt.Errorf("the provider's answer: %w", err)
	}
	states := map[string]string{charged: confirmed, refused: declined, closed: expired}
	if states[c.State] == "" {
		return "", fmt.Errorf("the provider answered with the state %q", c.State)
	}
	return states[c.State], nil
}

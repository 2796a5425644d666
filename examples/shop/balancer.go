package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
)

// dial connects to the next instance that accepts the connection.
func (f *fleet) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	f.mu.Lock()
	f.turn++
	var names, addrs []string
	for n := range f.instances {
		if i := f.instances[(f.turn+n)%len(f.instances)]; i.addr != "" {
			names, addrs = append(names, i.name), append(addrs, i.addr)
		}
	}
	f.mu.Unlock()
	err := errors.New("no instance is up")
	for n, addr := range addrs {
		var conn net.Conn
		if conn, err = new(net.Dialer).DialContext(ctx, network, addr); err == nil {
			go f.reached(momentRequest, names[n])
			return conn, nil
		}
	}
	return nil, fmt.Errorf("%w: %w", errDial, err)
}

var errDial = errors.New("not connected")

// balancer spreads the requests. It sends none again by itself: a client with a key knows better.
func (f *fleet) balancer() http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "shop" // and the Host stays: it is a part of the key
		},
		Transport: &http.Transport{DialContext: f.dial, DisableKeepAlives: true},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if errors.Is(err, errDial) { // nothing was done
				w.Header().Set("Retry-After", "1")
				http.Error(w, "no instance", http.StatusServiceUnavailable)
				return
			}
			http.Error(w, "the instance broke off", http.StatusBadGateway)
		},
	}
}

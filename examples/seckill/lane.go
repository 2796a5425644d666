package main

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
)

// lane is one of the shops on the page, with its own books.
type lane struct {
	service *service
	handler http.Handler
	addr    string // where the crowd finds it

	stock int // before the first sale

	mu      sync.Mutex
	load    *load // of the latest sale; nil before
	began   time.Time
	took    time.Duration // 0 while it runs
	stopped bool
}

// newLane opens the service and lets it listen for the crowd. around wraps its handler.
func newLane(
	ctx context.Context, o options, around func(http.Handler) http.Handler, opts ...core.Option,
) (*lane, func(), error) {
	s, closeAll, err := open(ctx, o, opts...)
	if err != nil {
		return nil, nil, err
	}
	l := &lane{service: s, handler: around(s.routes()), stock: o.stock}
	var shutdown func()
	if err = s.prepare(o.stock); err == nil {
		l.addr, shutdown, err = listen(l.handler)
	}
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return l, func() { shutdown(); closeAll() }, nil
}

// open makes the books of a new sale.
func (l *lane) open(o options) error {
	if err := l.service.prepare(o.stock); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load, l.began, l.took, l.stopped = newLoad(o, []string{l.addr}), time.Now(), 0, false
	return nil
}

// sell lets the crowd in until all have their answers or ctx ends.
func (l *lane) sell(ctx context.Context) {
	l.load.shop(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took, l.stopped = time.Since(l.began), ctx.Err() != nil
}

// laneState is what the page shows of a lane.
type laneState struct {
	result
	// Started means that there was a sale.
	Started bool `json:"started"`
	Done    bool `json:"done"`
	Stopped bool `json:"stopped"`
	// Stalled counts the requests that wait for long now, and Stalls all that have.
	Stalled int64 `json:"stalled"`
	Stalls  int64 `json:"stalls"`
	// Refusals counts the answers that were an error.
	Refusals int64 `json:"refusals"`
	// LastError is kept even if the buyer then tried again.
	LastError string `json:"last_error,omitempty"`
	// Error is why the books cannot be read.
	Error string `json:"error,omitempty"`
}

// state reads the books and what the crowd has seen so far.
func (l *lane) state() laneState {
	l.mu.Lock()
	crowd, took := l.load, l.took
	s := laneState{
		result:  result{Stock: l.stock},
		Started: crowd != nil, Done: took > 0, Stopped: l.stopped,
	}
	if took == 0 {
		took = time.Since(l.began)
	}
	l.mu.Unlock()
	if crowd != nil {
		s.result = crowd.result(took)
		s.Stalled, s.Stalls = crowd.stalled.Load(), crowd.stalls.Load()
		s.Refusals, s.LastError = crowd.refusals.Load(), crowd.last()
	}
	if err := s.check(l.service.db); err != nil {
		s.Error = err.Error()
	}
	s.OK = s.Oversold == 0 && s.Doubled == 0 && s.Sold+int64(s.Left) == int64(s.Stock)
	return s
}

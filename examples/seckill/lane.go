package main

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
)

// lane is one of the two shops on the page: the same service, with the kit's lines or without, on books of its own.
type lane struct {
	service *service
	handler http.Handler
	addr    string // where the crowd finds it

	mu    sync.Mutex
	load  *load // of the latest sale; nil before
	began time.Time
	took  time.Duration // 0 while it runs
	stock int
	err   error
}

// newLane opens the service and lets it listen for the crowd.
func newLane(ctx context.Context, o options, opts ...core.Option) (*lane, func(), error) {
	s, closeAll, err := open(ctx, o, opts...)
	if err != nil {
		return nil, nil, err
	}
	l := &lane{service: s, handler: s.routes(), stock: o.stock}
	var shutdown func()
	if err = prepare(s.db, o.stock); err == nil {
		l.addr, shutdown, err = listen(l.handler)
	}
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return l, func() { shutdown(); closeAll() }, nil
}

// sell opens new books and lets the crowd in until all have their answers or ctx ends.
func (l *lane) sell(ctx context.Context, o options) {
	err := prepare(l.service.db, o.stock)
	crowd := newLoad(o, []string{l.addr})
	l.mu.Lock()
	l.load, l.began, l.took, l.stock, l.err = crowd, time.Now(), 0, o.stock, err
	l.mu.Unlock()
	if err == nil {
		crowd.shop(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.took = time.Since(l.began); ctx.Err() != nil {
		l.err = errors.Join(l.err, errors.New("the sale was stopped"))
	}
}

// laneState is what the page shows of a lane.
type laneState struct {
	result
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
}

// state reads the books and what the crowd has seen so far.
func (l *lane) state() laneState {
	l.mu.Lock()
	crowd, took, err := l.load, l.took, l.err
	s := laneState{result: result{Stock: l.stock}, Done: took > 0}
	if took == 0 {
		took = time.Since(l.began)
	}
	l.mu.Unlock()
	if crowd != nil {
		s.result = crowd.result(took)
	}
	if err = errors.Join(err, s.check(l.service.db)); err != nil {
		s.Error = err.Error()
	}
	s.OK = s.Oversold == 0 && s.Doubled == 0 && s.Sold+int64(s.Left) == int64(s.Stock)
	return s
}

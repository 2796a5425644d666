package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// showState is one event of the page.
type showState struct {
	Running bool        `json:"running"`
	Began   int64       `json:"began"` // which sale it is: its start in ms, 0 before the first
	Over    float64     `json:"over"`  // seconds in which the buyers arrive
	Sale    laneState   `json:"sale"`
	Guarded laneState   `json:"guarded"`
	Naive   laneState   `json:"naive"`
	Waits   waitState   `json:"waits"`
	Nodes   []nodeState `json:"nodes"`
}

type nodeState struct {
	Addr string `json:"addr"`
	Up   bool   `json:"up"`
}

// state reads the books. changed is closed when they differ, except for the orders of a running
// sale.
func (s *show) state(ctx context.Context) (state showState, changed <-chan struct{}) {
	s.mu.Lock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	changed = s.changed
	state.Running, state.Over = s.cancel != nil, s.options.over.Seconds()
	state.Began = s.began
	s.mu.Unlock()
	state.Sale, state.Guarded, state.Naive = s.sale.state(), s.guarded.state(), s.naive.state()
	state.Waits = s.metrics.waits.state(ctx)
	for _, n := range s.nodes {
		state.Nodes = append(state.Nodes, nodeState{Addr: n.upstream, Up: n.up()})
	}
	return state, changed
}

// wake wakes the pages that watch. The caller holds mu.
func (s *show) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// thenWake is h, after which the pages look again. During a sale they look anyway. The crowd's
// requests need it, too: the kit finishes a request whose client has gone, even after the sale.
func (s *show) thenWake(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.cancel == nil {
			s.wake()
		}
	})
}

// events sends the state as server-sent events: several times a second during a sale, otherwise
// only after a change.
func (s *show) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	flush := http.NewResponseController(w)
	for {
		state, changed := s.state(r.Context())
		data, err := json.Marshal(state)
		if err == nil {
			_, err = fmt.Fprintf(w, "data: %s\n\n", data)
		}
		if err = errors.Join(err, flush.Flush()); err != nil {
			return
		}
		var tick <-chan time.Time
		if state.Running {
			tick = time.After(250 * time.Millisecond)
		}
		select {
		case <-tick:
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

package redisbackend

import (
	"sync"
	"time"
)

const (
	shortestTimeout = 250 * time.Millisecond
	longestTimeout  = time.Second
	// A call takes at most latencyFactor times the usual latency, and deviationFactor times its
	// usual deviation.
	latencyFactor   = 8
	deviationFactor = 4
	farAway         = 500 * time.Microsecond
	// The average follows a new answer by one part in smoothing.
	smoothing     = 8
	slowSmoothing = 1024
)

// latency decides how long a call to one Redis may take. Without a fixed limit, the limit follows
// the answers, as TCP's retransmission timer does (RFC 6298).
type latency struct {
	fixed time.Duration

	mu        sync.Mutex
	known     bool
	average   time.Duration
	deviation time.Duration
	best      time.Duration // a low answer: the way to Redis, without its load
}

func newLatency(fixed time.Duration) *latency { return &latency{fixed: fixed} }

// timeout returns how long the next call may take.
func (l *latency) timeout() time.Duration {
	if l.fixed > 0 {
		return l.fixed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known {
		return longestTimeout
	}
	return min(max(latencyFactor*l.average+deviationFactor*l.deviation, shortestTimeout), longestTimeout)
}

// far reports whether Redis is so far away that a pipeline costs a caller more than a connection.
func (l *latency) far() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.best >= farAway
}

// answered notes that a call took d.
func (l *latency) answered(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d < l.best || l.best == 0 {
		l.best = d
	} else {
		l.best += (d - l.best) / slowSmoothing
	}
	if !l.known {
		l.known, l.average, l.deviation = true, d, d/2
		return
	}
	off := d - l.average
	l.average += off / smoothing
	l.deviation += (max(off, -off) - l.deviation) / smoothing
}

// exceeded notes that a call had no answer within d. The next one may take twice as long: the
// answers may have become slow.
func (l *latency) exceeded(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = true
	l.average = min(max(l.average, 2*d/latencyFactor), longestTimeout/latencyFactor)
}

package redisbackend

import (
	"testing"
	"time"
)

func TestLatency_Timeout(t *testing.T) {
	t.Parallel()
	l := newLatency(0)
	if d := l.timeout(); d != longestTimeout {
		t.Errorf("before any answer: %v, want %v", d, longestTimeout)
	}
	for _, rtt := range []time.Duration{100 * time.Microsecond, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond} {
		// The next answers are slower by a jump, and each that comes too late is followed by more patience.
		for range 3 {
			if limit := l.timeout(); limit < rtt {
				l.exceeded(limit)
			} else {
				l.answered(rtt)
			}
		}
		for range 50 {
			l.answered(rtt)
		}
		if d := l.timeout(); d < shortestTimeout || d > longestTimeout || d < 4*rtt && d < longestTimeout {
			t.Errorf("with answers after %v: %v", rtt, d)
		}
	}
	for range 100 {
		l.answered(time.Millisecond)
	}
	if d := l.timeout(); d != shortestTimeout {
		t.Errorf("quick again: %v, want %v", d, shortestTimeout)
	}
	for range 100 {
		l.exceeded(l.timeout())
	}
	if d := l.timeout(); d != longestTimeout {
		t.Errorf("without answers: %v, want %v", d, longestTimeout)
	}
	fixed := newLatency(3 * time.Second)
	fixed.answered(time.Millisecond)
	fixed.exceeded(time.Second)
	if d := fixed.timeout(); d != 3*time.Second {
		t.Errorf("a fixed limit became %v", d)
	}
}

func TestLatency_Far(t *testing.T) {
	t.Parallel()
	near, distant := newLatency(time.Second), newLatency(0)
	near.answered(50 * time.Microsecond)
	for range 100 { // Redis is busy for a while
		near.answered(3 * time.Millisecond)
		distant.answered(3 * time.Millisecond)
	}
	if near.far() || !distant.far() || newLatency(0).far() {
		t.Errorf("far: a busy Redis %t, a distant one %t, an unknown one %t", near.far(), distant.far(), newLatency(0).far())
	}
}

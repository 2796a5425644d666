package main

import (
	"sync"
	"time"
)

// A hold is one time that a worker had the lock.
type hold struct {
	Worker int
	Claim
	open       bool
	registered bool // the fence took its token
}

// takes reports whether the hold began after an instant, and was not lost at once.
func (h hold) takes(after Instant) bool { return h.At > after && h.Until > h.At }

// A wait is one call of Acquire that ended with the lock, or with the trial.
type wait struct {
	Worker     int
	From, Till Instant
}

// A history is all that happened in a trial.
type history struct {
	Holds []hold
	Waits []wait
	// Plain and Fenced are the two counters. Each write adds one to what its holder has read.
	Plain, Fenced counter
	// Refused is how often the fence refused a holder.
	Refused int
	// Hit is the worker that the fault struck, or -1 if it struck all of them.
	Hit int
	// Fault and Healed are when the fault began and when it ended.
	Fault, Healed Instant
	// Ended is when the trial ended, and Refusals are errors of Acquire.
	Ended    Instant
	Refusals []string
}

// A counter has a value, and counts the writes that were acknowledged.
type counter struct{ Value, Writes int64 }

// points are where in a hold a fault may strike. The worker waits there until it has.
const (
	atHeld  = "after Acquire"
	atRead  = "after it read"
	atWrite = "between the last look at the lock and the write"
)

// A referee sees all that the workers of one trial do. It has the resource that they write.
type referee struct {
	// strike is called at each point of each hold, without mu. It may block the worker.
	strike func(worker, hold int, point string)
	// work is how long a hold takes.
	work func(hold int) time.Duration

	// failed is called if a worker cannot work.
	failed func(why string)

	// mu guards all that follows.
	mu       sync.Mutex
	changed  *sync.Cond
	history  history
	highest  uint64 // of the fence
	waits    map[int]Instant
	current  map[int]int // the worker's hold
	stopping bool
}

func newReferee() *referee {
	r := &referee{waits: make(map[int]Instant), current: make(map[int]int)}
	r.changed = sync.NewCond(&r.mu)
	return r
}

// A port is what one worker calls, one call after the other.
type port struct {
	*referee
	worker int
}

// Failed reports that the worker cannot work.
func (p port) Failed(why string, _ *bool) error {
	p.failed(why)
	return nil
}

// Want reports that the worker calls Acquire now.
func (p port) Want(at Instant, o *Orders) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, waits := p.waits[p.worker]; !waits {
		p.waits[p.worker] = at
	}
	o.Stop = p.stopping
	return nil
}

// Refused reports an error of Acquire. The worker still waits.
func (p port) Refused(why string, _ *bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.history.Refusals) < 100 {
		p.history.Refusals = append(p.history.Refusals, why)
	}
	return nil
}

// Held reports that Acquire has returned a lock.
func (p port) Held(c Claim, o *Orders) error {
	p.mu.Lock()
	n := len(p.history.Holds)
	p.current[p.worker] = n
	p.history.Holds = append(p.history.Holds, hold{Worker: p.worker, Claim: c, open: true})
	p.history.Waits = append(p.history.Waits, wait{p.worker, p.waits[p.worker], c.At})
	delete(p.waits, p.worker)
	p.changed.Broadcast()
	p.mu.Unlock()
	o.Work = p.work(n)
	p.strike(p.worker, n, atHeld)
	return nil
}

// Read registers the token at the fence, if there is one, and then reads the counters.
func (p port) Read(token uint64, v *Values) error {
	p.mu.Lock()
	h := &p.history.Holds[p.current[p.worker]]
	if token > p.highest {
		p.highest, h.registered = token, true
	} else if token > 0 {
		p.history.Refused++
	}
	*v = Values{p.history.Plain.Value, p.history.Fenced.Value}
	n := p.current[p.worker]
	p.mu.Unlock()
	p.strike(p.worker, n, atRead)
	return nil
}

// Writes reports that the worker has looked at its lock for the last time, and writes next.
func (p port) Writes(c Claim, _ *bool) error {
	p.mu.Lock()
	n := p.current[p.worker]
	p.history.Holds[n].Until = c.Until
	p.mu.Unlock()
	p.strike(p.worker, n, atWrite)
	return nil
}

// Write writes both counters. The one with a fence is written only by who registered last.
func (p port) Write(v Values, _ *bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &p.history.Holds[p.current[p.worker]]
	p.history.Plain.Value = v.Plain
	p.history.Plain.Writes++
	switch {
	case h.registered && h.Token == p.highest:
		p.history.Fenced.Value = v.Fenced
		p.history.Fenced.Writes++
	case h.registered:
		p.history.Refused++
	}
	return nil
}

// Ends reports that the worker does not have the lock any more, or that it releases it next.
func (p port) Ends(c Claim, _ *bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &p.history.Holds[p.current[p.worker]]
	h.Until, h.How, h.open = c.Until, c.How, false
	p.changed.Broadcast()
	return nil
}

// killed ends what a worker had: a dead process believes nothing.
func (r *referee) killed(worker int, at Instant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waits, worker)
	if n, ok := r.current[worker]; ok && r.history.Holds[n].open {
		h := &r.history.Holds[n]
		h.Until, h.How, h.open = at, "killed", false
	}
}

// await waits until the history meets a condition, and reports whether it did so in time.
func (r *referee) await(limit time.Duration, met func(*history) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := time.Now().Add(limit)
	defer time.AfterFunc(limit, r.changed.Broadcast).Stop()
	for !met(&r.history) {
		if !time.Now().Before(end) {
			return false
		}
		r.changed.Wait()
	}
	return true
}

// finish ends the trial and returns its history, with the waits that never ended.
func (r *referee) finish() history {
	r.mu.Lock()
	r.stopping = true
	r.mu.Unlock()
	r.await(3*time.Second, func(h *history) bool {
		for _, hold := range h.Holds {
			if hold.open {
				return false
			}
		}
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Ended = now()
	for worker, from := range r.waits {
		r.history.Waits = append(r.history.Waits, wait{worker, from, r.history.Ended})
	}
	return r.history
}

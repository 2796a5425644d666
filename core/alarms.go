package core

import (
	"container/heap"
	"sync"
	"time"
)

// manyAlarms is how many alarms a Locker has. Thousands of leases are due at once when a process stood
// still. With a single one, other callers would wait for its mutex behind all of them.
const manyAlarms = 16

// alarms calls tick for each of its leases that is due. One timer of the runtime serves many leases:
// most locks are released long before they are due. To start and stop a timer for each of them would
// wake the threads that wait for the network.
type alarms struct {
	mu    sync.Mutex
	began time.Time
	due   dueLeases
	timer *time.Timer   // nil before the first lease
	armed bool          // the timer is going to fire
	at    time.Duration // when it does, since began. That may be too early, and never is too late.
}

// set makes s due at a time, instead of the time that was set before.
func (a *alarms) set(s *lease, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.due = max(at.Sub(a.began), 0); s.place == 0 { // a zero time is long ago
		heap.Push(&a.due, s)
	} else {
		heap.Fix(&a.due, s.place-1)
	}
	a.armLocked()
}

// stop makes s not due any more. A call of tick may be under way.
func (a *alarms) stop(s *lease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.place > 0 {
		heap.Remove(&a.due, s.place-1)
	}
}

// close ends the timer, unless a lease still needs it.
func (a *alarms) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.due) == 0 && a.timer != nil {
		a.timer.Stop()
		a.armed = false
	}
}

// ring runs when the timer fires.
func (a *alarms) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.armed = false
	for now := time.Since(a.began); len(a.due) > 0 && a.due[0].due <= now; {
		go heap.Pop(&a.due).(*lease).tick()
	}
	a.armLocked()
}

// armLocked sets the timer for the first lease.
func (a *alarms) armLocked() {
	if len(a.due) == 0 || a.armed && a.at <= a.due[0].due {
		return
	}
	a.armed, a.at = true, a.due[0].due
	if wait := a.at - time.Since(a.began); a.timer == nil {
		a.timer = time.AfterFunc(wait, a.ring)
	} else {
		a.timer.Reset(wait)
	}
}

// dueLeases is a heap for [container/heap]. A lease knows its place in it, beginning with 1.
type dueLeases []*lease

func (d dueLeases) Len() int           { return len(d) }
func (d dueLeases) Less(i, j int) bool { return d[i].due < d[j].due }

func (d dueLeases) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i+1, j+1
}

func (d *dueLeases) Push(x any) {
	s := x.(*lease)
	*d = append(*d, s)
	s.place = len(*d)
}

func (d *dueLeases) Pop() any {
	last := len(*d) - 1
	s := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	s.place = 0
	return s
}

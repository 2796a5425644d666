package core

import (
	"container/list"
	"fmt"
	"time"

	"github.com/onelane/onelane/internal/undone"
)

const (
	// In a turn, a key goes from one local holder to the next while other processes wait for it. Each
	// caller that waited when it began has the key turnRounds times. So a caller alone elsewhere gets a
	// third of an equal share. If turns are too short, hand-overs between processes are dear. See lock
	// cohorting (Dice, Marathe, Shavit 2012).
	turnRounds   = 3
	shortestTurn = 25 * time.Millisecond
	longestTurn  = 125 * time.Millisecond

	// A process that knows of waiters elsewhere stands back after its turn until each of them had the
	// key. After a single lock it stands back until one of them had it. It goes ahead if nobody takes
	// the key for as long as the slowest of them needs. That counts as mostNeed at most.
	// It leaves them mostOwed turns at most: some of them may be gone, and one of the others busy.
	mostNeed   = 50 * time.Millisecond
	mostOwed   = 8
	needMargin = 2 * time.Millisecond
	// A process stands back for a part of its turn if waiters poll. The smaller part is for pollers
	// that nobody sees, such as redsync.
	pollingPart = 4
	silentPart  = 64
)

// queue is this process's line for one key. At most one local holder has the lease, and at most one
// waiter, the head, talks to the backend. Guarded by Locker.mu.
type queue struct {
	name    string
	lease   *lease
	head    *waiter
	waiting *list.List // of *waiter; nil if there never was one
	arrived uint64     // waiters that joined so far

	due       int           // locks that this process's turn still has, 1 if it had all, 0 without a turn.
	turn      time.Duration // when it began, since the Locker was made.
	standBack time.Time     // until then the head leaves the key to others.
	need      time.Duration // of the slowest of them.
	owed      int           // how many of their turns the head leaves to them, if they come before that.
	outage    time.Time     // since when the backend is unavailable, or zero
	// unanswered is since when the backend answered no question, or zero: the callers that asked may
	// have given up early.
	unanswered time.Time
	last       error // the last thing known of the key: *TakenError, *UnavailableError or nil

	any *anyQueue // nil, except for the queue of an anyQueue
}

// takenHere is the answer for a key that a caller of this process had. The key is filled in later.
var takenHere = &TakenError{}

// delivery is what a waiter in the queue gets: a lock, an error, or neither: then it is the head.
type delivery struct {
	lock *Lock
	err  error
}

// join puts w into the queue of its key: as the head if the queue is empty, else at the end if w
// waits.
func (l *Locker) join(w *waiter, wait bool) (q *queue, head bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed() {
		return nil, false, undone.Mark(fmt.Errorf("core: acquire key %q: %w", w.key, ErrClosed))
	}
	q = l.queues[w.name]
	if q == nil {
		q = &queue{name: w.name}
		l.queues[w.name] = q
	}
	if q.lease == nil && q.head == nil {
		q.head, w.tries = w, !wait
		return q, true, nil
	}
	if wait {
		err = l.enqueue(q, w)
	}
	return q, false, err
}

// enqueue puts w at the end of the queue, unless the queue is full. l.mu is held.
func (l *Locker) enqueue(q *queue, w *waiter) error {
	callers := 0
	if q.head != nil && !q.head.tries && !q.head.gone() {
		callers++
	}
	if q.waiting == nil {
		q.waiting = list.New()
	}
	callers += q.waiting.Len()
	if l.maxWaiters > 0 && callers >= l.maxWaiters && w.scout == nil {
		return &TakenError{Key: w.key, QueueFull: true}
	}
	w.ready = make(chan delivery, 1)
	q.arrived++
	w.number = q.arrived
	w.place = q.waiting.PushBack(w)
	return nil
}

// idle reports whether no caller of this process holds or awaits the key, and the process does not
// leave it to others.
func (l *Locker) idle(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[name]
	return q == nil || q.lease == nil && q.head == nil && !time.Now().Before(q.standBack)
}

// quit takes w out of the queue. It reports whether w was still waiting; if not, a delivery is in
// w.ready. The rest is what is known of the key: the lease of this process, or the last answer.
func (l *Locker) quit(q *queue, w *waiter) (waiting bool, holder *lease, last error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.place != nil {
		q.waiting.Remove(w.place)
		w.place = nil
		if q.any != nil {
			q.any.endIfEmpty()
		}
		return true, q.lease, q.last
	}
	return false, q.lease, q.last
}

// leave ends w's time as the head. It does nothing if w is not the head.
func (l *Locker) leave(q *queue, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.head == w {
		q.head = nil
		l.promote(q)
	}
}

// promote makes the first waiter the head, or removes an empty queue. l.mu is held.
func (l *Locker) promote(q *queue) {
	if q.lease != nil || q.head != nil {
		return
	}
	if w := q.pop(); w != nil {
		q.head = w
		w.ready <- delivery{}
		return
	}
	q.due = 0
	if wait := q.leaveAlone(); wait > 0 {
		time.AfterFunc(wait, func() { l.forget(q) }) // until then the next caller stands back
		return
	}
	if l.queues[q.name] == q {
		delete(l.queues, q.name)
	}
}

// leaveAlone returns how long the key is left to other processes, or at most 0.
func (q *queue) leaveAlone() time.Duration {
	if q.standBack.IsZero() {
		return 0
	}
	return time.Until(q.standBack)
}

// forget removes an empty queue whose time to stand back is over.
func (l *Locker) forget(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.lease == nil && q.head == nil && l.queues[q.name] == q && !time.Now().Before(q.standBack) {
		delete(l.queues, q.name)
	}
}

// first returns the first waiter, or nil.
func (q *queue) first() *waiter {
	if q.waiting == nil || q.waiting.Len() == 0 {
		return nil
	}
	return q.waiting.Front().Value.(*waiter)
}

// pop removes and returns the first waiter, or nil.
func (q *queue) pop() *waiter {
	w := q.first()
	if w == nil {
		return nil
	}
	q.waiting.Remove(w.place)
	w.place = nil
	return w
}

// answer gives err to all waiters that match.
func (q *queue) answer(err error, match func(*waiter) bool) {
	if q.waiting == nil {
		return
	}
	for e := q.waiting.Front(); e != nil; {
		w, next := e.Value.(*waiter), e.Next()
		if match(w) {
			q.waiting.Remove(e)
			w.place = nil
			w.ready <- delivery{err: err}
		}
		e = next
	}
}

// acquired puts a new lease into the queue. It reports whether the Locker is closed.
func (l *Locker) acquired(q *queue, s *lease) (closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q.lease, q.head, q.last, q.owed = s, nil, takenHere, 0
	q.outage, q.unanswered = time.Time{}, time.Time{}
	if q.due == 0 {
		q.turn, q.due = s.firstHold.began.Sub(l.began), turnRounds
		if q.waiting != nil {
			q.due = turnRounds * (q.waiting.Len() + 1)
		}
	}
	return l.isClosed()
}

// nextHolder returns the waiter that gets the lease s without a round trip, or nil. It must want
// the same kind of lease, and this process's turn must not be over.
// crowded reports whether others wait, too.
func (l *Locker) nextHolder(s *lease, now time.Time) (w *waiter, crowded bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[s.grant.Key]
	if q == nil || q.lease != s || l.isClosed() || l.turnOver(q, now.Sub(l.began)) {
		return nil, false
	}
	if first := q.first(); first == nil || !s.fits(first) {
		return nil, false
	}
	w = q.pop()
	q.due = max(q.due-1, 1)
	return w, q.first() != nil
}

// turnOver reports whether this process's turn is over at a time since the Locker was made. If the
// backend does not know who waits, hand-overs between processes cost more, and turns are long.
func (l *Locker) turnOver(q *queue, now time.Duration) bool {
	return q.due > 0 && now-q.turn > longestTurn || q.due == 1 && now-q.turn > shortestTurn && !l.blind
}

// leaseOver says that s no longer holds the key, and who else waits for it. The next waiter may ask
// the backend.
func (l *Locker) leaseOver(s *lease, waiters Waiters) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[s.grant.Key]
	if q == nil || q.lease != s {
		return
	}
	q.lease, l.blind = nil, waiters.Others < 0
	if q.first() == nil && waiters.Others <= 0 { // nobody waits for a turn
		l.promote(q)
		return
	}
	now := time.Now()
	over, turn := l.turnOver(q, now.Sub(l.began)), min(now.Sub(l.began)-q.turn, longestTurn)
	switch {
	case waiters.Others > 0:
		q.need = min(waiters.Need, mostNeed)
		q.standBack, q.owed = now.Add(q.need), 1
		if over {
			q.owed = min(waiters.Others, mostOwed)
		}
	case over && waiters.Others < 0:
		q.standBack = now.Add(l.chance.jitter(turn / pollingPart))
	case over:
		q.standBack = now.Add(l.chance.jitter(turn / silentPart))
	}
	if over || waiters.Others > 0 {
		q.due = 0
	}
	l.promote(q)
}

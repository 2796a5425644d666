package core

import (
	"context"
	"errors"
	"strings"
	"time"
)

const (
	// hungAsk is for how long the request for one key holds up the others.
	hungAsk = 20 * time.Millisecond
	// hungAgain is the same for a key that was out of reach before.
	hungAgain = time.Millisecond
	// spreadKeys is how many keys are polled as often as a single key.
	spreadKeys = 8

	// The queue asks again for a key that is sealed, orphaned or out of reach after refusedPause.
	// It may be unsealed while the callers wait for other keys.
	refusedPause        = time.Second
	longestRefusedPause = 10 * time.Second
)

var errNoAnswer = errors.New("core: the backend has not answered yet")

// anyID names the queue of the callers that wait for any of the same keys with the same options.
type anyID struct {
	names    string
	settings settings
}

func newAnyID(names []string, s settings) anyID {
	return anyID{strings.Join(names, "\n"), s} // a name has no control characters
}

// anyQueue is this process's line for any of several keys. While it has waiters it has a scout for
// each key: an ordinary waiter in the line of that key. A lock that a scout gets goes to the first
// waiter. Guarded by Locker.mu, except slot.
type anyQueue struct {
	queue  // has neither a lease nor a head
	locker *Locker
	id     anyID
	ctx    context.Context // the scouts'
	cancel context.CancelFunc

	// slot has one element while a scout asks the backend: several could get more locks than there
	// are waiters.
	slot chan struct{}

	answers []error       // the backend's last answer for each key, or nil
	refused []uint64      // for refused keys: arrived at the question. Else 0
	again   chan struct{} // closed when it is time to ask for the refused keys again
}

// scout is the state of a waiter that waits for one key on behalf of an anyQueue.
type scout struct {
	of    *anyQueue
	index int         // of its key
	slot  *time.Timer // runs while the scout has the slot and does not hang
}

// awaitedAny reports whether callers wait for any of these keys with these options.
func (l *Locker) awaitedAny(names []string, s settings) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.anys) > 0 && l.anys[newAnyID(names, s)] != nil
}

// joinAny puts w into the queue of its keys, and makes the queue if w is the first.
func (l *Locker) joinAny(w *waiter, keys, names []string) (*anyQueue, error) {
	id := newAnyID(names, w.settings)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed() {
		return nil, w.gaveUp(w.ctx, nil)
	}
	if a := l.anys[id]; a != nil {
		return a, l.enqueue(&a.queue, w)
	}
	a := &anyQueue{
		locker: l, id: id, slot: make(chan struct{}, 1), again: make(chan struct{}),
		answers: make([]error, len(keys)), refused: make([]uint64, len(keys)),
	}
	a.any = a
	a.ctx, a.cancel = context.WithCancel(context.Background())
	l.anys[id] = a
	_ = l.enqueue(&a.queue, w) // the first is not refused
	for i := range keys {
		go a.serve(i, keys[i], names[i])
	}
	return a, nil
}

// endIfEmpty ends the scouts if nobody waits any more. l.mu is held.
func (a *anyQueue) endIfEmpty() {
	if a.first() == nil && a.locker.anys[a.id] == a {
		delete(a.locker.anys, a.id)
		a.cancel()
	}
}

// serve sends scouts to one key, one after the other.
func (a *anyQueue) serve(i int, key, name string) {
	for a.ctx.Err() == nil {
		w := a.locker.newWaiter(a.ctx, key, name, a.id.settings)
		w.scout = &scout{of: a, index: i}
		arrived := a.begin(i, name)
		k, err := w.acquire()
		switch {
		case k != nil:
			a.deliver(w, k)
			w.leaveSlot()
		case a.ctx.Err() != nil || errors.Is(err, ErrClosed):
			return
		default:
			a.pause(a.refuse(i, arrived, err))
		}
	}
}

// begin notes that the key may become free, and returns how many callers arrived so far. A key that
// was out of reach stays refused until it answers or a caller of this process holds it. A try lasts
// as long as the outage wait, and several keys would hardly ever be refused at the same time.
func (a *anyQueue) begin(i int, name string) (arrived uint64) {
	a.locker.mu.Lock()
	defer a.locker.mu.Unlock()
	if q := a.locker.queues[name]; q != nil && q.lease != nil {
		a.answers[i] = nil
	}
	if !errors.Is(a.answers[i], ErrUnavailable) {
		a.refused[i] = 0
	}
	return a.arrived
}

// asking notes that the first answer for a key is not known yet. It returns for how long the scout
// has the slot.
func (a *anyQueue) asking(w *waiter) time.Duration {
	a.locker.mu.Lock()
	defer a.locker.mu.Unlock()
	switch last := &a.answers[w.scout.index]; {
	case *last == nil:
		*last = &UnavailableError{Key: w.key, Nodes: []error{errNoAnswer}}
	case errors.Is(*last, ErrUnavailable):
		return hungAgain
	}
	return hungAsk
}

// answered notes what the backend answered for a key. Locker.mu is held.
func (a *anyQueue) answered(i int, err error) {
	a.answers[i] = err
	if !errors.Is(err, ErrUnavailable) {
		a.refused[i] = 0
	}
}

// deliver gives the lock that the scout w got to the first waiter.
func (a *anyQueue) deliver(w *waiter, k *Lock) {
	a.locker.mu.Lock()
	a.answered(w.scout.index, nil)
	first := a.pop()
	a.endIfEmpty()
	a.locker.mu.Unlock()
	if first == nil {
		w.drop(k)
		return
	}
	k.parent = first.ctx
	first.ready <- delivery{lock: k}
}

// refuse notes that a key is not available now. If that is so for all keys, callers that arrived
// before the first question get these answers. For others the queue asks for the keys again. The
// channel that it returns is closed then.
func (a *anyQueue) refuse(i int, arrived uint64, err error) (again <-chan struct{}) {
	a.locker.mu.Lock()
	defer a.locker.mu.Unlock()
	a.answers[i], a.refused[i] = err, arrived
	again = a.again
	oldest := arrived
	for _, n := range a.refused {
		oldest = min(oldest, n)
	}
	if oldest == 0 {
		return again
	}
	a.answer(lastAnswer(a.answers), func(o *waiter) bool { return o.number <= oldest })
	a.endIfEmpty()
	clear(a.refused)
	close(a.again)
	a.again = make(chan struct{})
	return again
}

// pause waits until it is time to ask for a refused key again.
func (a *anyQueue) pause(again <-chan struct{}) {
	l := a.locker
	select {
	case <-time.After(l.chance.jitter(min(refusedPause*time.Duration(a.spread()), longestRefusedPause))):
	case <-again:
	case <-a.ctx.Done():
	case <-l.done:
	}
}

// soonest returns when the first wait of a caller ends, if there is such a time.
func (a *anyQueue) soonest() (end time.Time, ok bool) {
	a.locker.mu.Lock()
	defer a.locker.mu.Unlock()
	if a.waiting == nil {
		return end, false
	}
	for e := a.waiting.Front(); e != nil; e = e.Next() {
		if at, limited := e.Value.(*waiter).ctx.Deadline(); limited && (!ok || at.Before(end)) {
			end, ok = at, true
		}
	}
	return end, ok
}

// spread returns how much less often each of the keys is polled than a single key.
func (a *anyQueue) spread() int { return (len(a.answers) + spreadKeys - 1) / spreadKeys }

// lastAnswer is the answer for a waiter that gives up.
func (a *anyQueue) lastAnswer() error {
	a.locker.mu.Lock()
	defer a.locker.mu.Unlock()
	return lastAnswer(a.answers)
}

// askInSlot is ask for a scout. After a grant w has the slot until the lock is delivered.
func (w *waiter) askInSlot(ctx context.Context, q *queue) (*Lock, error) {
	a := w.scout.of
	select {
	case a.slot <- struct{}{}:
	case <-ctx.Done():
	case <-w.locker.done:
	}
	if ctx.Err() != nil || w.locker.isClosed() {
		return nil, w.gaveUp(ctx, nil)
	}
	w.scout.slot = time.AfterFunc(a.asking(w), func() { <-a.slot })
	// If the last waiter leaves meanwhile, the attempt goes on: to give it up costs a clean-up.
	k, err := w.ask(context.WithoutCancel(ctx), q)
	if k == nil {
		w.leaveSlot()
		w.locker.mu.Lock()
		a.answered(w.scout.index, err)
		w.locker.mu.Unlock()
	}
	return k, err
}

// gone reports whether w is a scout whose callers have left. l.mu is held.
func (w *waiter) gone() bool { return w.scout != nil && w.scout.of.ctx.Err() != nil }

// leaveSlot lets the next scout ask.
func (w *waiter) leaveSlot() {
	s := w.scout
	if s.slot != nil && s.slot.Stop() {
		<-s.of.slot
	}
	s.slot = nil
}

package stock

import (
	"context"
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/onelane/onelane/internal/undone"
)

// call is one Sell.
type call struct {
	ctx    context.Context
	n      int64
	order  reflect.Value // the caller's own. It is read, and clones of it are stored.
	values []any         // of the unique columns; nil if one of them is not known
	unique string        // the text of values
	asked  time.Time
	batch  trace.SpanContext // of its transaction

	// done is closed when the result is known, unless the caller runs the batch itself. The caller
	// calls woken then.
	done  chan struct{}
	woken func()
	result
}

// result is what becomes of a call, if its transaction commits.
type result struct {
	left   int64
	err    error
	stored reflect.Value // what the caller's order becomes, if valid
}

// lane is the line of the calls for one row. seller.mu guards it.
type lane struct {
	key     any
	waiting []*call            // first in, first out
	busy    bool               // somebody runs batches
	out     *InsufficientError // too little was left a moment ago
}

// sell decides about a call. The first one in an idle lane leads it.
func (s *seller) sell(key any, c *call) {
	span := s.reported.start(c)
	defer func() { s.reported.end(span, c) }()
	l, first, err := s.join(key, c)
	switch {
	case err != nil:
		c.err = err
	case first:
		s.lead(l, c)
	default:
		s.wait(l, c)
	}
}

// join puts a call into the line of its row. It reports first if the lane is idle.
func (s *seller) join(key any, c *call) (l *lane, first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l = s.lanes[key]
	if l == nil {
		l = &lane{key: key}
		s.lanes[key] = l
	}
	if len(l.waiting) >= s.waiting {
		return nil, false, undone.Mark(s.failed(key, c.n,
			fmt.Errorf("nothing was done: %w: %d wait, which is the limit of Waiting", ErrBusy, len(l.waiting))))
	}
	first, l.busy = !l.busy, true
	l.waiting = append(l.waiting, c)
	return l, first, nil
}

// lead waits for a connection. If nobody has joined the call by then, it sells in the caller's own
// goroutine. A panic of a hook goes through it like through a transaction by hand.
func (s *seller) lead(l *lane, c *call) {
	var room stackRoom
	defer room.keep()
	select {
	case s.slots <- struct{}{}:
	case <-c.ctx.Done():
		go s.run(l)
		s.wait(l, c)
		return
	}
	if s.takeAlone(l) {
		defer s.leave(l)
		s.sellBatch(l, []*call{c}, true)
		return
	}
	go func() {
		s.runBatch(l)
		s.run(l)
	}()
	s.wait(l, c)
}

// stackRoom keeps the stack of a goroutine large while it waits for a connection. The collector would
// halve a stack of which less than a quarter is used. Then each sale would copy it, to grow again: a
// tenth of its time.
type stackRoom [4 << 10]byte

//go:noinline
func (r *stackRoom) keep() { r[0] = 1 }

// takeAlone takes the first call out of the line, and reports false if there are others.
func (s *seller) takeAlone(l *lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(l.waiting) > 1 {
		return false
	}
	l.waiting = nil
	return true
}

// wait returns when a call is decided. Only in the line the end of its context withdraws it.
func (s *seller) wait(l *lane, c *call) {
	select {
	case <-c.done:
		c.woken()
		return
	case <-c.ctx.Done():
	}
	if s.withdraw(l, c) {
		c.err = undone.Mark(s.failed(l.key, c.n,
			fmt.Errorf("the context ended while the call waited, nothing was done: %w", c.ctx.Err())))
		return
	}
	<-c.done
	c.woken()
}

// withdraw takes a call out of the line. It reports false if the call is in a batch already.
func (s *seller) withdraw(l *lane, c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(l.waiting, c)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return i >= 0
}

// leave ends the batch of a caller that sold by itself. Those who wait get a goroutine.
func (s *seller) leave(l *lane) {
	<-s.slots
	if !s.idle(l) {
		go s.run(l)
	}
}

// run runs the batches of a lane until nobody waits. Between two of them, other lanes get their turn.
func (s *seller) run(l *lane) {
	for !s.idle(l) {
		s.slots <- struct{}{}
		s.runBatch(l)
	}
}

// runBatch runs the next batch, and gives the connection back.
func (s *seller) runBatch(l *lane) {
	batch := s.next(l)
	if len(batch) > 0 {
		s.sellBatch(l, batch, false)
	}
	<-s.slots
	wake(batch)
}

// wake wakes the callers of a batch, and returns when all of them run. Those that buy again at once
// are in the next batch then, and not in the one after it: half as many transactions do.
func wake(batch []*call) {
	var all sync.WaitGroup
	all.Add(len(batch))
	for _, c := range batch {
		c.woken = all.Done
		close(c.done)
	}
	all.Wait()
}

// idle ends the work on a lane, and reports true, if nobody waits.
func (s *seller) idle(l *lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(l.waiting) > 0 {
		return false
	}
	l.busy = false
	s.dropLocked(l)
	return true
}

// dropLocked forgets a lane that nobody needs.
func (s *seller) dropLocked(l *lane) {
	if !l.busy && l.out == nil && s.lanes[l.key] == l {
		delete(s.lanes, l.key)
	}
}

// next takes the next batch out of the line. Its size is a power of two, so that there are few
// statements to prepare. A second call with the same unique values waits for the first one's result.
// So does a call with which the column could not hold the sum.
func (s *seller) next(l *lane) []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum int64
	var batch, later []*call
	seen := make(map[string]bool, min(len(l.waiting), s.batch))
	line := l.waiting
	for len(line) > 0 && len(batch) < s.batch {
		c := line[0]
		line = line[1:]
		if c.n > s.most-sum || c.values != nil && seen[c.unique] {
			later = append(later, c)
			continue
		}
		sum += c.n
		seen[c.unique] = true
		batch = append(batch, c)
	}
	size := rounded(len(batch), 1)
	l.waiting = slices.Concat(batch[size:], later, line)
	return batch[:size]
}

// rounded returns n rounded down to a number with so many significant bits.
func rounded(n, significant int) int {
	insignificant := max(0, bits.Len(uint(n))-significant)
	return n >> insignificant << insignificant
}

// remember notes that too little is left, and forgets it in time.
func (s *seller) remember(l *lane, left int64) {
	if s.memory == 0 {
		return
	}
	out := s.insufficient(l.key, 0, left)
	s.mu.Lock()
	l.out = out
	s.mu.Unlock()
	time.AfterFunc(s.memory, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.out == out {
			l.out = nil
			s.dropLocked(l)
		}
	})
}

// remembered returns an error if this process knows that less than n is left.
func (s *seller) remembered(key any, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[key]
	if l == nil || l.out == nil || n <= l.out.Left {
		return nil
	}
	short := *l.out
	short.N = n
	return &short
}

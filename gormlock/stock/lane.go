package stock

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// call is one Sell.
type call struct {
	ctx    context.Context
	n      int64
	order  reflect.Value // a copy of the caller's order, which nobody changes
	unique string        // the values of the unique columns; "" if one is not known
	values []any         // of the unique columns
	asked  time.Time

	// done is closed when the rest is decided.
	done   chan struct{}
	left   int64
	err    error
	stored reflect.Value     // what the caller's order becomes, if valid
	batch  trace.SpanContext // of the transaction
}

func (s *seller) newCall(ctx context.Context, n int64, order reflect.Value) *call {
	c := &call{ctx: ctx, n: n, order: s.cloner.clone(order), asked: time.Now(), done: make(chan struct{})}
	if len(s.uniques) > 0 {
		c.unique, c.values = s.uniqueOf(c.order)
	}
	return c
}

// lane is the line of the calls for one row. seller.mu guards it.
type lane struct {
	key     any
	waiting []*call // first in, first out
	led     bool    // somebody runs batches
	out     *memory // too little was left
}

// memory is how much was left when nobody could be served.
type memory struct {
	left int64
	row  string // for errors, made once for all callers
}

// sell puts a call into the line of its row and returns when it is decided.
func (s *seller) sell(key any, c *call) {
	span := s.reported.start(c)
	defer func() { s.reported.end(span, c) }()
	l, leads, err := s.join(key, c)
	if err != nil {
		c.err = err
		return
	}
	if leads && s.lead(l, c) {
		return
	}
	select {
	case <-c.done:
	case <-c.ctx.Done():
		if s.withdraw(l, c) {
			c.err = s.ended(l, c)
			return
		}
		<-c.done
	}
}

func (s *seller) ended(l *lane, c *call) error {
	return fmt.Errorf("stock: sell %d of %s: the context ended while the call waited, nothing was done: %w",
		c.n, s.row(l.key), c.ctx.Err())
}

// remembered returns an error if this process knows that less than n is left.
func (s *seller) remembered(ctx context.Context, key any, n int64) error {
	s.mu.Lock()
	var out *memory
	if l := s.lanes[key]; l != nil {
		out = l.out
	}
	s.mu.Unlock()
	if out == nil || n <= out.left {
		return nil
	}
	s.reported.remembered(ctx)
	return s.insufficientIn(out.row, n, out.left)
}

// join adds a call to its lane. It leads if nobody does.
func (s *seller) join(key any, c *call) (l *lane, leads bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l = s.lanes[key]
	switch {
	case l == nil:
		l = &lane{key: key}
		s.lanes[key] = l
	case len(l.waiting) >= s.waiting:
		return nil, false, fmt.Errorf("stock: sell %d of %s, nothing was done: %w: %d wait, which is the limit of Waiting",
			c.n, s.row(key), ErrBusy, len(l.waiting))
	}
	l.waiting = append(l.waiting, c)
	leads = !l.led
	l.led = true
	return l, leads, nil
}

// withdraw takes a call out of the line. It reports false if the call is in a batch already.
func (s *seller) withdraw(l *lane, c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(l.waiting, c)
	if i < 0 {
		return false
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return true
}

// lead runs the batch of the first call of a lane in that caller's own goroutine, if nobody has
// joined it. Otherwise a goroutine of its own leads, and lead reports false. A panic of a hook and
// a runtime.Goexit go through it like through a transaction by hand.
func (s *seller) lead(l *lane, c *call) (decided bool) {
	select {
	case s.slots <- struct{}{}:
	default: // all connections are in use: others may join meanwhile
		go s.run(l)
		return false
	}
	batch := s.next(l)
	if len(batch) != 1 || batch[0] != c {
		go s.runBatch(l, batch)
		return false
	}
	defer s.leave(l)
	s.sellBatch(l, batch, true)
	return true
}

// leave ends the batch of a lane. Those who wait get a goroutine.
func (s *seller) leave(l *lane) {
	<-s.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(l.waiting) > 0 {
		go s.run(l)
		return
	}
	l.led = false
	s.dropLocked(l)
}

// run runs the batches of a lane until nobody waits.
func (s *seller) run(l *lane) {
	s.slots <- struct{}{}
	s.runBatch(l, s.next(l))
}

// runBatch runs a batch in the slot that the goroutine has, and then the others.
func (s *seller) runBatch(l *lane, batch []*call) {
	for len(batch) > 0 {
		s.sellBatch(l, batch, false)
		for _, c := range batch {
			close(c.done)
		}
		<-s.slots // others are in line for it
		s.slots <- struct{}{}
		batch = s.next(l)
	}
	<-s.slots
}

// next takes the next batch out of the line. It is the largest power of two of the calls that wait,
// so that there are few statements to prepare. A second call with the same unique values stays at
// the head of the line. So does a call with which the column could not hold the sum. If nobody
// waits, next returns none, and the lane is no longer led.
func (s *seller) next(l *lane) []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum int64
	seen := make(map[string]bool)
	taken := make([]bool, 0, min(len(l.waiting), s.batch))
	count := 0
	for _, c := range l.waiting {
		fits := c.n <= s.most-sum && (c.unique == "" || !seen[c.unique])
		taken = append(taken, fits)
		if !fits {
			continue
		}
		sum += c.n
		if c.unique != "" {
			seen[c.unique] = true
		}
		if count++; count == s.batch {
			break
		}
	}
	if count == 0 {
		l.led = false
		s.dropLocked(l)
		return nil
	}
	for count&(count-1) != 0 {
		count &= count - 1
	}
	batch := make([]*call, 0, count)
	rest := make([]*call, 0, len(l.waiting)-count)
	for i, c := range l.waiting {
		if len(batch) < count && taken[i] {
			batch = append(batch, c)
		} else {
			rest = append(rest, c)
		}
	}
	l.waiting = rest
	return batch
}

// dropLocked forgets a lane that nobody needs.
func (s *seller) dropLocked(l *lane) {
	if !l.led && len(l.waiting) == 0 && l.out == nil && s.lanes[l.key] == l {
		delete(s.lanes, l.key)
	}
}

// remember notes that too little is left, and forgets it in time.
func (s *seller) remember(l *lane, left int64) {
	if s.memory == 0 {
		return
	}
	m := &memory{left, s.condition(l.key)}
	s.mu.Lock()
	l.out = m
	s.mu.Unlock()
	time.AfterFunc(s.memory, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.out == m {
			l.out = nil
			s.dropLocked(l)
		}
	})
}

// again goes on with the panic or the Goexit of a hook in the caller's goroutine.
func (p *panicError) again() {
	if p.goexit {
		runtime.Goexit()
	}
	panic(p)
}

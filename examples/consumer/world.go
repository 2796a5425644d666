package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// processes is how many run at a time.
const processes = 8

// world is what the processes share: a Redis with the queue and the records, and the bank.
type world struct {
	client *redis.Client
	addr   string
	bank   *bank
	asking atomic.Int64 // processes that die while they ask
	stops  []func()
}

func (w *world) close() {
	for _, stop := range slices.Backward(w.stops) {
		stop()
	}
}

func newWorld(addr string) (*world, error) {
	w := &world{addr: addr}
	if addr == "" {
		m := miniredis.NewMiniRedis()
		if err := m.Start(); err != nil {
			return nil, fmt.Errorf("cannot start the embedded Redis: %w", err)
		}
		w.addr = m.Addr()
		w.stops = append(w.stops, m.Close, expire(m))
	}
	w.client = redis.NewClient(&redis.Options{Addr: w.addr})
	w.bank = newBank()
	w.stops = append(w.stops, func() { _ = w.client.Close() }, w.bank.Close)
	return w, nil
}

// expire makes keys of the embedded Redis expire. By itself its clock stands still.
func expire(m *miniredis.Miniredis) (stop func()) {
	const tick = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for last := time.Now(); ctx.Err() == nil; {
			time.Sleep(tick)
			now := time.Now()
			m.FastForward(now.Sub(last))
			last = now
		}
	}()
	return func() { cancel(); <-done }
}

// perform lets processes consume until this many have been killed and every order is finished. Each
// process finds one order more, so that there is always something to die for.
func (w *world) perform(ctx context.Context, a act, kills int, out io.Writer) (bool, error) {
	began := time.Now()
	a.Redis, a.Bank = w.addr, w.bank.URL
	if err := w.client.XGroupCreateMkStream(ctx, a.stream(), group, "0").Err(); err != nil {
		return false, fmt.Errorf("cannot make the stream %s: %w", a.stream(), err)
	}
	p := &progress{kills: kills, moments: []string{afterCharge, beforeAck}}
	if a.Mode == modeAsk {
		p.moments = append(p.moments, whileAsking)
	}
	playing, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	for range processes {
		all.Go(func() {
			for playing.Err() == nil {
				if err := w.play(playing, a, p); err != nil {
					stop(err)
				}
			}
		})
	}
	err := w.finished(playing, a, p)
	stop(err)
	all.Wait()
	if err != nil {
		return false, err
	}
	fmt.Fprintln(out, a.Title)
	return w.books(ctx, a, p, time.Since(began), out)
}

// progress is what has happened in an act.
type progress struct {
	kills   int
	moments []string

	mu             sync.Mutex
	orders, killed int
}

// next returns the moment at which the next process dies, and the order that it finds. It returns
// "" if enough have died.
func (p *progress) next() (moment string, order int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed >= p.kills {
		return "", 0
	}
	p.orders++
	return p.moments[p.orders%len(p.moments)], p.orders
}

func (p *progress) died() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed++
}

// sent returns how many orders there are. It reports whether there will be no more.
func (p *progress) sent() (orders int, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.orders, p.killed >= p.kills
}

// play sends an order and runs a process until that dies. If enough have died, it sends nothing, and
// the process consumes until ctx ends.
func (w *world) play(ctx context.Context, a act, p *progress) error {
	var order int
	if a.Dies, order = p.next(); order > 0 {
		values := []string{"order", fmt.Sprintf("%s-%d", a.Mode, order)}
		if err := w.client.XAdd(context.WithoutCancel(ctx), &redis.XAddArgs{Stream: a.stream(), Values: values}).Err(); err != nil {
			return err
		}
	}
	if a.Dies == whileAsking {
		// If all wait for an order that somebody else has died for, nobody dies.
		defer w.asking.Add(-1)
		if w.asking.Add(1) > processes/4 {
			a.Dies = afterCharge
		}
	}
	killed, err := runChild(ctx, a)
	if killed {
		p.died()
	}
	return err
}

// patience is how long nothing may happen before the orders that are left count as lost.
const patience = 2 * time.Minute

// finished waits until each order is done or parked.
func (w *world) finished(ctx context.Context, a act, p *progress) error {
	before, since := "", time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
		n, all := p.sent()
		known, _, err := w.outcomes(ctx, a)
		if err != nil {
			return err
		}
		pending, err := w.client.XPending(ctx, a.stream(), group).Result()
		if err != nil {
			return err
		}
		if now := fmt.Sprint(n, len(known), pending.Count); now != before {
			before, since = now, time.Now()
		}
		if all && len(known) == n && pending.Count == 0 || time.Since(since) > patience {
			return nil
		}
	}
}

// outcomes returns the orders whose outcome is known, and how many of them only a human can finish.
func (w *world) outcomes(ctx context.Context, a act) (known map[string]string, parked int, err error) {
	known, err = w.client.HGetAll(ctx, a.key("done")).Result()
	if err != nil {
		return nil, 0, err
	}
	done := len(known)
	reported, err := w.client.HGetAll(ctx, a.key("parked")).Result()
	maps.Copy(known, reported)
	return known, len(known) - done, err
}

// books compares what the bank and the queue say.
func (w *world) books(ctx context.Context, a act, p *progress, took time.Duration, out io.Writer) (bool, error) {
	known, parked, err := w.outcomes(ctx, a)
	if err != nil {
		return false, err
	}
	done, lost := len(known)-parked, p.orders-len(known)
	charged, twice := w.bank.counts(a.Mode + "-")
	fmt.Fprintf(out, "   killed between the charge and the acknowledgement: %d processes, in %v\n", p.killed, took.Round(time.Second))
	fmt.Fprintf(out, "   orders %d: done %d, reported to a human %d, lost %d\n", p.orders, done, parked, lost)
	fmt.Fprintf(out, "   charged: %d orders, %d of them more than once\n", charged, twice)
	return twice == 0 && lost == 0 && charged >= done && (a.Mode != modeAsk || parked == 0), nil
}

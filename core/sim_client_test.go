package core_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// simRules are the safety rules that can be switched off.
type simRules struct {
	rules
	deadlineIgnored bool // a holder believes in its lease for ever
	ownerReused     bool // the next try has the owner of the one before
	revokeWhoever   bool // whoever holds the key, not only who was seen to hold it
	memoryStays     bool // a process that unseals a key goes on to remember its seal
}

// simResource is what the lock protects, twice: with a fence and without. Both count.
type simResource struct {
	fence            uint64 // the token registered last
	fenced, unfenced int
	fencedDone       int // writes that were accepted
	unfencedDone     int
}

// simBackend is a Backend as a process uses it.
type simBackend struct {
	core.Backend
	w *simWorld
}

func (b *simBackend) Acquire(ctx context.Context, key, owner string, ttl time.Duration) (core.Grant, error) {
	g, err := b.Backend.Acquire(ctx, key, owner, ttl)
	return b.believed(g), err
}

func (b *simBackend) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	g, err := b.Backend.Extend(ctx, g, ttl)
	return b.believed(g), err
}

func (b *simBackend) believed(g core.Grant) core.Grant {
	if b.w.off.deadlineIgnored {
		g.Deadline = g.Deadline.Add(time.Hour)
	}
	return g
}

func (b *simBackend) Release(ctx context.Context, g core.Grant) error {
	if st, err := b.Backend.Inspect(ctx, g.Key); b.w.off.revokeWhoever && g.Token == 0 && err == nil { // it is a Revoke
		g.Owner = st.Owner
	}
	err := b.Backend.Release(ctx, g)
	if err == nil {
		b.w.mu.Lock()
		b.w.released[g.Key+g.Owner] = true
		b.w.mu.Unlock()
	}
	return err
}

func (b *simBackend) Close() error { return b.Backend.(interface{ Close() error }).Close() }

// open starts the process p.
func (w *simWorld) open(p *simProcess) {
	var links []core.NodeFunc
	for i := range w.nodes {
		links = append(links, w.link(p, i))
	}
	opts := []core.Option{core.WithTTL(simLongestTTL), core.WithSealMemory(w.plan.memory), core.WithLogger(slog.New(slog.DiscardHandler)), core.WithInstance(fmt.Sprint("p", p.id)),
		core.WithNodeTimeout(w.plan.nodeTimeout), core.WithChance(
			func(instance, _ string) string {
				w.mu.Lock()
				defer w.mu.Unlock()
				if !w.off.ownerReused {
					p.leases++
				}
				return fmt.Sprintf("%s/%d", instance, p.leases)
			},
			func(d time.Duration) time.Duration {
				return d/2 + between(rand.New(rand.NewPCG(w.plan.seed, uint64(w.history.now())+uint64(p.id))), 0, d)
			})}
	b, err := core.Open(core.Nodes(links), opts...)
	if err != nil {
		panic(err)
	}
	if p.locker, err = core.New(&simBackend{b, w}, opts...); err != nil {
		panic(err)
	}
}

// simulate runs a plan in a bubble of its own, and returns what was seen. It fails nothing itself.
func simulate(t *testing.T, p *simPlan, off simRules) *simWorld {
	var w *simWorld
	synctest.Test(t, func(*testing.T) {
		w = newWorld(p, off)
		for _, process := range w.processes {
			w.open(process)
		}
		var wg sync.WaitGroup
		for i, steps := range p.clients {
			wg.Go(func() { w.client(i, steps) })
		}
		wg.Wait()
		time.Sleep(time.Second) // not in the middle of what the last call has begun
		w.mu.Lock()
		w.healed = true
		w.mu.Unlock()
		time.Sleep(10 * time.Minute) // all leases end, also where a clock jumped back
		w.settled()
		for _, process := range w.processes {
			if err := process.locker.Close(); err != nil {
				w.history.violate("Close", "%v", err)
			}
		}
		time.Sleep(time.Minute)
	})
	w.history.finish(w.revoked)
	if p.sane {
		w.history.violations = slices.Concat(w.history.violations, w.history.overlaps(), w.history.regressions())
		if v := w.history.linearizable(); v != "" {
			w.history.violations = append(w.history.violations, v)
		}
	}
	for key, r := range w.resources {
		if r.fenced != r.fencedDone {
			w.history.violate("I2", "%s: %d writes were accepted, %d are there", key, r.fencedDone, r.fenced)
		}
	}
	return w
}

// settled looks whether everything is free again, and whether it can be had.
func (w *simWorld) settled() {
	w.mu.Lock()
	seals := make(map[string]bool)
	for i, h := range w.nodes {
		for k := range w.plan.keys {
			name := fmt.Sprintf("onelane:{k%d}", k)
			value, held := h.node.get(name)
			switch {
			case sealed(value):
				seals[name] = true
			case held:
				w.history.violate("I3", "node %d: %s is still held by %s", i, name, value)
			}
		}
	}
	p := &simProcess{id: len(w.processes), unsealed: make(map[string]time.Duration)}
	w.processes = append(w.processes, p)
	w.mu.Unlock()
	w.open(p)
	for k := range w.plan.keys {
		s := simStep{key: k, wait: 5 * time.Second, bound: time.Second, ttl: time.Second}
		err := w.lock(-1, p, s)
		if errors.Is(err, core.ErrUnavailable) && seals[fmt.Sprintf("onelane:{k%d}", k)] { // nobody can say whether it is old
			w.unseal(-1, p, s)
			err = w.lock(-1, p, s)
		}
		if err != nil && !errors.Is(err, core.ErrSealed) {
			w.history.violate("liveness", "when all is well: %v", err)
		}
	}
}

func (w *simWorld) client(n int, steps []simStep) {
	p := w.processes[n%w.plan.processes]
	for _, s := range steps {
		time.Sleep(s.think)
		if !w.awake(p, late(n)) {
			return
		}
		switch {
		case s.unseal:
			w.unseal(n, p, s)
		case s.inspect:
			w.inspect(n, p, s)
		case s.revoke:
			w.revoke(n, p, s)
		case s.all:
			w.lockAll(n, p, s)
		default:
			_ = w.lock(n, p, s)
		}
	}
}

package zkbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
)

// event is what a client saw: that it holds a key, or that it no longer believes so.
type event struct {
	key     string
	hold    int64
	token   uint64 // 0: the hold ends
	holding bool
}

// history is what the clients of a test saw.
type history struct {
	start  time.Time
	holds  atomic.Int64
	done   [clients]atomic.Int64 // holds of each client
	mu     sync.Mutex
	events []porcupine.Operation
}

// clients is how many clients a history has, and pause is the longest between two of a client's holds.
const (
	clients = 4
	pause   = 200 * time.Millisecond
)

func newHistory() *history { return &history{start: time.Now()} }

func (h *history) add(client int, e event, from, to time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, porcupine.Operation{ClientId: client, Input: e, Call: int64(from), Return: int64(to)})
}

// held is the state of a key in the model.
type held struct {
	hold  int64
	token uint64
}

// model is a lock with fencing tokens: it has one holder at a time, and tokens increase.
var model = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		keys := make(map[string][]porcupine.Operation)
		for _, o := range all {
			key := o.Input.(event).key
			keys[key] = append(keys[key], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range keys {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return held{} },
	Step: func(state, input, _ any) (bool, any) {
		s, e := state.(held), input.(event)
		if e.holding {
			return s.hold == 0 && e.token > s.token, held{e.hold, e.token}
		}
		return s.hold == e.hold, held{0, s.token}
	},
}

func (h *history) check(t testing.TB) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch porcupine.CheckOperationsTimeout(model, h.events, patience) {
	case porcupine.Illegal:
		t.Errorf("%d events are not those of a lock with one holder at a time and increasing tokens", len(h.events))
	case porcupine.Unknown:
		t.Errorf("%d events are too many to check", len(h.events))
	}
	t.Logf("%d holds", h.holds.Load())
}

// client acquires keys until ctx ends, holds each for a moment and releases it.
func (h *history) client(t testing.TB, ctx context.Context, id int, l *core.Locker) {
	for ctx.Err() == nil {
		key := fmt.Sprint("k", rand.IntN(2))
		call := time.Since(h.start)
		k, err := l.Acquire(ctx, key)
		if err != nil {
			if ctx.Err() == nil && !isUnavailable(err) {
				t.Errorf("Acquire: %v", err)
			}
			continue
		}
		e := event{key: key, hold: h.holds.Add(1), holding: true}
		if e.token, err = k.Token(context.Background()); err != nil {
			t.Errorf("Token: %v", err)
		}
		h.done[id].Add(1)
		got := time.Since(h.start)
		select {
		case <-k.Context().Done():
		case <-time.After(rand.N(3 * time.Millisecond)):
		}
		end := time.Since(h.start)
		if k.Err() != nil { // lost, and since when is not known, but not before its deadline
			end = min(end, max(call, k.Deadline().Sub(h.start)))
		}
		h.add(id, e, call, got)
		h.add(id, event{key: key, hold: e.hold}, end, time.Since(h.start)+time.Hour)
		if err := k.Release(context.Background()); err != nil && !errors.Is(err, core.ErrLost) && !isUnavailable(err) {
			t.Errorf("Release: %v", err)
		}
		if !check.Long {
			time.Sleep(rand.N(pause)) // ensembles of tests beside this one need the processors, too
		}
	}
}

// more is how many holds of a client show that it goes on.
func more() int64 {
	if check.Long {
		return 5
	}
	return 2 // one may have been granted before the fault, and is counted late
}

// progress waits until each client was granted more keys.
func (h *history) progress(t testing.TB, what string) {
	t.Helper()
	h.progressOf(t, what, 0, 1, 2, 3)
}

// progressOf waits until these clients were granted more keys.
func (h *history) progressOf(t testing.TB, what string, ids ...int) {
	t.Helper()
	began := time.Now()
	for _, id := range ids {
		before := h.done[id].Load()
		eventually(t, what, func() bool { return h.done[id].Load() >= before+more() })
	}
	t.Logf("%s: each client goes on after %v", what, time.Since(began).Round(time.Millisecond))
}

// polled is a backend whose waiters poll. On a new connection go-zookeeper 1.0.4 sets its watches with
// the last zxid. It reads that while an answer writes it, and the race detector reports it.
type polled struct{ core.Opener }

func (p polled) Open(env core.Environment) (core.Backend, error) {
	b, err := p.Opener.Open(env)
	if err != nil {
		return nil, err
	}
	return withoutWatch{b.(core.Sealer)}, nil
}

type withoutWatch struct{ core.Sealer }

func (withoutWatch) Watch(context.Context, string) (<-chan struct{}, func(), error) {
	return nil, func() {}, nil
}

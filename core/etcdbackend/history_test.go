package etcdbackend_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
)

// history is what several processes saw of one key.
type history struct {
	t     *testing.T
	start time.Time
	locks atomic.Int64

	mu  sync.Mutex
	ops []porcupine.Operation
}

// hold is an operation: a lock was acquired with a token, or its holder ceased to believe in it.
type hold struct {
	ended bool
	token uint64
}

func newHistory(t *testing.T) *history { return &history{t: t, start: time.Now()} }

func (h *history) add(client int, op hold, call, ret time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: op,
		Call: call.Sub(h.start).Nanoseconds(), Return: ret.Sub(h.start).Nanoseconds()})
}

// process acquires and releases the key until stop is closed.
func (h *history) process(client int, l *core.Locker, key string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		call := time.Now()
		k, err := l.Acquire(ctx, key, core.WithToken())
		if err != nil {
			h.t.Logf("process %d: %v", client, err)
			cancel()
			continue
		}
		token, err := k.Token(ctx)
		ok(h.t, "Token", err)
		h.add(client, hold{token: token}, call, time.Now())
		h.locks.Add(1)
		select { // it works, until it is done or its lock is lost
		case <-time.After(5 * time.Millisecond):
		case <-k.Context().Done():
		}
		begun, end := time.Now(), time.Now()
		if k.Err() != nil { // lost, and since when is not known, but not before its deadline
			if d := k.Deadline(); d.Before(begun) {
				begun = d
			}
			if begun.Before(call) {
				begun = call
			}
		}
		h.add(client, hold{ended: true, token: token}, begun, end.Add(1))
		_ = k.Release(ctx)
		cancel()
		if !check.Long {
			time.Sleep(rand.N(100 * time.Millisecond)) // tests beside this one need the processors, too
		}
	}
}

// check fails the test if the key ever had two holders, or its tokens did not increase.
func (h *history) check() {
	h.t.Helper()
	type state struct {
		held bool
		last uint64
	}
	model := porcupine.Model{
		Init: func() any { return state{} },
		Step: func(s, input, _ any) (bool, any) {
			now, op := s.(state), input.(hold)
			if op.ended {
				return now.held && now.last == op.token, state{last: now.last}
			}
			return !now.held && op.token > now.last, state{true, op.token}
		},
	}
	if len(h.ops) == 0 {
		h.t.Fatal("the history is empty")
	}
	if result := porcupine.CheckOperationsTimeout(model, h.ops, check.Patience); result != porcupine.Ok {
		h.t.Errorf("%d operations are no history of a lock: %v", len(h.ops), result)
	}
}

// during runs processes on one key while fault does its work, each with its client. They get locks
// before and after it.
func during(t *testing.T, clients []*clientv3.Client, key string, fault func()) {
	t.Helper()
	h := newHistory(t)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i, client := range clients {
		l := hasty(t, client, core.WithTTL(2*time.Second), core.WithOutageWait(time.Minute))
		all.Go(func() { h.process(i, l, key, stop) })
	}
	more := func(when string) {
		t.Helper()
		before := h.locks.Load()
		eventually(t, when, func() bool { return h.locks.Load() >= before+10 })
	}
	more("locks before the fault")
	fault()
	more("locks after the fault")
	close(stop)
	all.Wait()
	h.check()
	t.Logf("%d locks", h.locks.Load())
}

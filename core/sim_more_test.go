package core_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
)

// revoke frees a key that somebody was seen to hold.
func (w *simWorld) revoke(client int, p *simProcess, s simStep) {
	var st core.State
	_, err := w.bounded("inspect", s.bound, func(ctx context.Context) (err error) {
		st, err = p.locker.Inspect(ctx, s.name())
		return err
	})
	time.Sleep(s.hold[0]) // who looks at it takes a while
	if err != nil || st.Status != core.Held || !w.awake(p, late(client)) {
		return
	}
	w.mu.Lock()
	if _, before := w.revoked[st.Owner]; !before {
		w.revoked[st.Owner] = w.history.now()
	}
	w.mu.Unlock()
	_, _ = w.bounded("revoke", s.bound, func(ctx context.Context) error { return p.locker.Revoke(ctx, s.name(), st.Owner) })
}

// lockAll holds all keys for a while.
func (w *simWorld) lockAll(client int, p *simProcess, s simStep) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opts := []core.AcquireOption{core.WithTTL(s.ttl), core.WithWait(s.wait)}
	if s.cancel > 0 {
		defer time.AfterFunc(s.cancel, cancel).Stop()
	}
	var keys []string
	for k := range w.plan.keys {
		keys = append(keys, fmt.Sprint("k", w.plan.keys-1-k))
	}
	s.deadline = false
	called := w.history.now()
	locks, err := p.locker.AcquireAll(ctx, keys, opts...)
	w.inTime("acquire all", called, s.wait)
	w.history.saw("acquire all" + outcome(err))
	var taken *core.SealedError
	if errors.As(err, &taken) {
		w.answered(client, taken.Key, w.remembered(p, taken.Key, called), taken.Token, taken.Value)
	}
	if err != nil {
		return
	}
	if len(locks) != len(keys) {
		w.history.violate("all", "client %d got %d locks of %d", client, len(locks), len(keys))
	}
	var holds []*simHold
	var writes []func()
	for _, k := range locks {
		h, _, stop := w.got(client, p, k, called, s)
		defer stop()
		registered, seen, unfenced := w.register(h.key, k.Token())
		holds = append(holds, h)
		writes = append(writes, func() { w.write(h.key, k.Token(), registered, seen, unfenced) })
	}
	time.Sleep(s.hold[0])
	if !w.awake(p, late(client)) {
		return
	}
	for _, write := range writes {
		write()
	}
	w.mu.Lock()
	for _, h := range holds {
		h.to = min(h.to, w.history.now())
	}
	w.mu.Unlock()
	_, _ = w.bounded("release all", s.bound, locks.Release)
}

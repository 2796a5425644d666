package core_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
)

func (s *simStep) name() string { return fmt.Sprint("k", s.key) }

// bounded runs one call under a context that ends after bound, and sees to I12. It returns when it was called.
func (w *simWorld) bounded(what string, bound time.Duration, call func(ctx context.Context) error) (called time.Duration, err error) {
	called = w.history.now()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	err = call(ctx)
	w.inTime(what, called, bound)
	w.history.saw(what + outcome(err))
	return called, err
}

func (w *simWorld) inTime(what string, called, bound time.Duration) {
	if took := w.history.now() - called; took > bound+100*time.Millisecond+time.Millisecond { // a node's reply to a call that is given up takes some µs
		w.history.violate("I12", "%s took %v with %v to go", what, took, bound)
	}
}

// late is how much later than others a client goes on.
func late(client int) time.Duration { return time.Duration(client+2) * 100 * time.Microsecond }

func outcome(err error) string {
	for _, known := range []error{core.ErrUnavailable, core.ErrTaken, core.ErrSealed, core.ErrLost, core.ErrReleased, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, known) {
			return ": " + known.Error()
		}
	}
	if err != nil {
		return ": " + err.Error()
	}
	return ": done"
}

func sealName(token uint64, value []byte) string { return fmt.Sprintf("%s@%d", value, token) }

func (w *simWorld) answered(client int, key string, called time.Duration, token uint64, value []byte) {
	w.history.add(simOp{kind: opAnswer, key: key, client: client, token: token, value: sealName(token, value), sure: true,
		call: called, ret: w.history.now()})
}

func (w *simWorld) unseal(client int, p *simProcess, s simStep) {
	called, err := w.bounded("unseal", s.bound, func(ctx context.Context) error {
		if w.off.memoryStays {
			return core.BackendOf(p.locker).Unseal(ctx, "onelane:{"+s.name()+"}")
		}
		return p.locker.Unseal(ctx, s.name())
	})
	if err == nil {
		w.mu.Lock()
		p.unsealed[s.name()] = w.history.now()
		w.mu.Unlock()
	}
	o := simOp{kind: opUnseal, key: s.name(), client: client, sure: err == nil, call: called, ret: w.history.now()}
	if err != nil || !w.awake(p, late(client)) {
		o.sure, o.ret = false, never
	}
	w.history.add(o)
}

func (w *simWorld) inspect(client int, p *simProcess, s simStep) {
	var st core.State
	called, err := w.bounded("inspect", s.bound, func(ctx context.Context) (err error) {
		st, err = p.locker.Inspect(ctx, s.name())
		return err
	})
	if err == nil && st.Status == core.Sealed {
		w.answered(client, s.name(), called, st.Token, st.Value)
	}
}

// lock acquires a lock, and does with it what the step says.
func (w *simWorld) lock(client int, p *simProcess, s simStep) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opts := []core.AcquireOption{core.WithTTL(s.ttl)}
	if s.noRenew {
		opts = append(opts, core.WithoutRenewal())
	}
	if s.deadline {
		ctx, cancel = context.WithTimeout(ctx, s.wait)
		defer cancel()
	} else if !s.try {
		opts = append(opts, core.WithWait(s.wait))
	}
	if s.cancel > 0 {
		defer time.AfterFunc(s.cancel, cancel).Stop()
	}
	called := w.history.now()
	acquire := p.locker.Acquire
	if s.try {
		acquire = p.locker.TryAcquire
	}
	k, err := acquire(ctx, s.name(), opts...)
	if s.deadline || !s.try {
		w.inTime("acquire", called, s.wait)
	}
	w.history.saw("acquire" + outcome(err))
	var taken *core.SealedError
	if errors.As(err, &taken) {
		w.answered(client, s.name(), w.remembered(p, s.name(), called), taken.Token, taken.Value)
	}
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		w.history.violate("I4", "client %d got a lock on %s from a context that is done", client, s.name())
	}
	h, id, stop := w.got(client, p, k, called, s)
	defer stop()
	w.hold(h, id, s)
	return nil
}

// got begins a hold.
func (w *simWorld) got(client int, p *simProcess, k *core.Lock, called time.Duration, s simStep) (h *simHold, id int, stop func() bool) {
	if !time.Now().Before(k.Deadline()) {
		w.history.violate("validity", "client %d got a lock on %s that has ended", client, k.Key())
	}
	h = &simHold{lock: k, process: p, key: k.Key(), client: client, from: w.history.now(), to: never, lost: never}
	id, stop = w.history.held(h, called), func() bool { return true }
	if !s.deadline { // else the context ends sooner
		stop = context.AfterFunc(k.Context(), func() { w.lost(h) })
	}
	return h, id, stop
}

// remembered is since when an answer to a question asked then may be true: it may be from memory, if that was not told to forget.
func (w *simWorld) remembered(p *simProcess, key string, called time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(called-w.plan.memory, p.unsealed[key], 0)
}

// lost notes when a holder was told that its lock is lost.
func (w *simWorld) lost(h *simHold) {
	if !errors.Is(context.Cause(h.lock.Context()), core.ErrLost) {
		return
	}
	now, deadline := w.history.now(), h.lock.Deadline().Sub(w.start)
	w.mu.Lock()
	h.lost = now
	w.mu.Unlock()
	if now > deadline {
		w.history.violate("I5", "client %d was told at %v that its lock on %s ended at %v", h.client, now, h.key, deadline)
	}
	w.early(h, now, deadline)
}

// early notices a lock that is called lost while it must be held.
func (w *simWorld) early(h *simHold, now, deadline time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, revoked := w.revoked[h.lock.Owner()]; w.plan.sane && now < deadline && !h.sealed && !w.forgot && !revoked { // a seal may be there, and unsealed, before its holder knows
		w.history.violate("early loss", "client %d lost %s at %v, before its deadline %v", h.client, h.key, now, deadline)
	}
}

// hold is what a holder does; it does not look whether the lock is lost.
func (w *simWorld) hold(h *simHold, id int, s simStep) {
	k := h.lock
	if !w.awake(h.process, late(h.client)) {
		return
	}
	registered, seen, seenUnfenced := w.register(h.key, k.Token())
	time.Sleep(s.hold[0])
	if !w.awake(h.process, late(h.client)) {
		return
	}
	if s.extend > 0 {
		_, _ = w.bounded("extend", s.bound, func(ctx context.Context) error { return k.Extend(ctx, s.extend) })
	}
	time.Sleep(s.hold[1])
	if !w.awake(h.process, late(h.client)) {
		return
	}
	w.write(h.key, k.Token(), registered, seen, seenUnfenced)
	switch s.end {
	case byRelease:
		w.release(h, s)
	case bySeal:
		w.seal(h, id, s)
	case byLapse:
		k.Lapse()
	case byNothing:
	}
}

func (w *simWorld) release(h *simHold, s simStep) {
	called := w.history.now()
	w.mu.Lock()
	h.to = min(h.to, called)
	lost := h.lost
	w.mu.Unlock()
	_, err := w.bounded("release", s.bound, h.lock.Release)
	if err == nil && lost < called {
		w.history.violate("I5", "client %d released %s without an error, and it was lost before", h.client, h.key)
	}
}

// seal seals, tries again what has no known outcome, and gives the lock up where it stays unknown.
func (w *simWorld) seal(h *simHold, id int, s simStep) {
	value := fmt.Appendf(nil, "v%d", id)
	o := simOp{kind: opSeal, key: h.key, client: h.client, hold: id, token: h.lock.Token(), value: sealName(h.lock.Token(), value), call: -1}
	unknown := false
	w.mu.Lock()
	h.sealed = true
	w.mu.Unlock()
	for range 2 {
		called, err := w.bounded("seal", s.bound, func(ctx context.Context) error { return h.lock.Seal(ctx, value, s.retention) })
		w.mu.Lock()
		h.to = min(h.to, called)
		w.mu.Unlock()
		if o.call < 0 {
			o.call = called
		}
		alive := w.awake(h.process, late(h.client))
		o.sure = err == nil && alive
		known := err == nil || errors.Is(err, core.ErrLost) || errors.Is(err, core.ErrReleased)
		unknown = unknown || err == nil && !alive || !known
		if !alive || known {
			break
		}
	}
	if o.ret = w.history.now(); !o.sure {
		o.ret = never
	}
	if o.sure || unknown {
		w.history.add(o)
		ends := o
		ends.kind, ends.sure, ends.ret = opSealEnds, true, never
		ends.call += s.retention - s.retention/100 - time.Millisecond
		w.history.add(ends)
	}
	if !o.sure {
		if s.bound%2 == 0 {
			w.release(h, s)
		} else {
			h.lock.Lapse()
		}
	}
}

// register asks the resource to accept a token, and reads it.
func (w *simWorld) register(key string, token uint64) (ok bool, fenced, unfenced int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.resources[key]
	if r == nil {
		r = &simResource{}
		w.resources[key] = r
	}
	if ok = token > r.fence; ok {
		r.fence = token
	}
	return ok, r.fenced, r.unfenced
}

// write writes one more than what was read.
func (w *simWorld) write(key string, token uint64, registered bool, fenced, unfenced int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.resources[key]
	if registered && r.fence == token {
		r.fenced, r.fencedDone = fenced+1, r.fencedDone+1
	}
	r.unfenced, r.unfencedDone = unfenced+1, r.unfencedDone+1
}

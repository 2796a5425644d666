package core

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Locker acquires locks from one backend. It owns what is the same for every backend: waiting, the local queue,
// re-entrance, renewal and loss. It is safe for concurrent use; a process needs one per backend.
type Locker struct {
	backend Backend
	config

	standBack time.Duration
	seen      sealMemory

	mu     sync.Mutex // taken after a lease's mutex where both are needed
	lines  map[string]*line
	closed bool
	done   chan struct{} // closed by Close
}

// New returns a Locker on b. It does not talk to the backend; bad options and impossible backends (no node, two nodes)
// are errors. Close it when the process ends.
func New(b Backend, opts ...Option) (*Locker, error) {
	if b == nil {
		return nil, errors.New("core: New needs a backend: core.Clients(client), core.Pools(pool…) or one of your own")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	r, opens := b.(interface {
		open(*config) (Backend, error)
	})
	switch {
	case opens:
		if b, err = r.open(c); err != nil {
			return nil, err
		}
	case c.pipelined:
		return nil, errors.New("core: Pipelined is for core.Clients, and this is another backend")
	}
	l := &Locker{backend: b, config: *c, lines: make(map[string]*line), done: make(chan struct{}), standBack: pollingStandBack}
	if _, ok := b.(Watcher); ok {
		l.standBack = wokenStandBack
	}
	if _, ok := b.(*wokenQuorum); ok { // whose waiters wait a moment when they are told
		l.standBack += wakeJitter
	}
	return l, nil
}

var defaultLocker atomic.Pointer[Locker]

// SetDefault sets the Locker that the adapters use where none is named. Call it once, when the process starts.
func SetDefault(l *Locker) { defaultLocker.Store(l) }

// Default returns the Locker passed to [SetDefault], nil before.
func Default() *Locker { return defaultLocker.Load() }

// Acquire holds key for this process, waiting until it is free, ctx ends or [WithWait] has passed. Waiters of one
// process stand in one line per key: first come, first served.
//
// A key has 1 to 512 bytes of UTF-8 without control characters; [Join] makes one of several parts. The error is
// [*TakenError] when the wait ended (it matches ctx's error too, if that ended it), [*SealedError], [*UnavailableError],
// or one that matches [ErrInvalidKey], [ErrClosed] or, when ctx ended while the backend was asked, its error and not [ErrUnavailable].
// With an error nothing stays held. If ctx carries a lock on the
// key ([WithLock]), Acquire returns another handle on it at once.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...AcquireOption) (*Lock, error) {
	return l.acquire(ctx, ctx, key, opts, false)
}

// TryAcquire is [Locker.Acquire] without waiting: if anybody holds the key, or waits for it in this process, the
// answer is [*TakenError]. It talks to the backend once at most.
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...AcquireOption) (*Lock, error) {
	return l.acquire(ctx, ctx, key, opts, true)
}

// acquire waits until ctx ends, which is the caller's context or one that ends sooner.
func (l *Locker) acquire(caller, ctx context.Context, key string, opts []AcquireOption, try bool) (*Lock, error) {
	began := time.Now()
	traced, span := l.telemetry.start(ctx, "onelane.acquire", key)
	k, err := l.acquireTraced(ctx, traced, key, opts, try)
	err = told(caller, key, err)
	l.telemetry.acquired(caller, span, began, k, err)
	return k, err
}

// acquireTraced calls the backend with traced, a child of ctx. The lock's own context is not one: the span is over before the lock is used.
func (l *Locker) acquireTraced(ctx, traced context.Context, key string, opts []AcquireOption, try bool) (*Lock, error) {
	name, err := backendKey(l.prefix, key)
	if err != nil {
		return nil, err
	}
	s, err := l.settings.with(opts)
	if err != nil {
		return nil, err
	}
	w := &waiter{ctx: ctx, traced: traced, key: key, name: name, settings: s}
	if cause := context.Cause(ctx); errors.Is(cause, errWaitOver) { // of AcquireAll
		return nil, l.gaveUp(ctx, w, nil)
	} else if cause != nil {
		return nil, notAsked(ctx, key)
	}
	if k := l.carriedLock(ctx, name); k != nil {
		if again, err := k.again(ctx); again != nil || err != nil {
			return again, err
		}
	}
	if sealed := l.seen.recall(key, name, s.sealMemory); sealed != nil {
		return nil, sealed
	}
	if try {
		return l.tryInLine(w)
	}
	return l.waitInLine(w)
}

// Do runs fn while it holds key, acquired as by [Locker.Acquire], and releases it when fn returns or panics. The context passed to fn
// carries the lock (see [WithLock]) and is cancelled, with cause [ErrLost], when the lock is lost.
//
// It returns fn's error. If the lock was lost while fn ran the error also matches [ErrLost]: somebody else may have
// run at the same time. A release that fails otherwise is logged and does not make Do fail: fn was alone, and the key
// is free when its lease runs out.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...AcquireOption) (err error) {
	k, err := l.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	defer func() {
		released := k.Release(ctx)
		switch {
		case released == nil:
		case errors.Is(released, ErrLost) && err == nil:
			err = released
		case errors.Is(released, ErrLost):
			err = errors.Join(err, released)
		default:
			l.logger.WarnContext(ctx, "core: release failed; the key is free when its lease runs out", "key", key, "error", released)
		}
	}()
	return fn(WithLock(k.Context(), k))
}

// Locks are locks on several keys, from [Locker.AcquireAll].
type Locks []*Lock

// AcquireAll holds all keys or none. It removes duplicates and takes them in one order everywhere, so that two calls
// cannot wait for each other; a call under a lock that its context carries can, where that lock's key comes later in the alphabet.
// [WithWait] bounds the whole call. Otherwise as [Locker.Acquire]; if one of the locks was lost while another was waited
// for, the error matches [ErrLost]. No keys are no locks, and no error.
func (l *Locker) AcquireAll(ctx context.Context, keys []string, opts ...AcquireOption) (Locks, error) {
	if len(keys) == 1 {
		k, err := l.Acquire(ctx, keys[0], opts...)
		if err != nil {
			return nil, err
		}
		return Locks{k}, nil
	}
	s, err := l.settings.with(opts)
	if err != nil {
		return nil, err
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(keys)))
	for _, key := range sorted {
		if _, err := backendKey(l.prefix, key); err != nil {
			return nil, err
		}
	}
	waiting, cancel := s.limit(ctx, time.Now())
	defer cancel()
	locks, err := l.acquireEach(ctx, waiting, sorted, opts)
	if err == nil {
		return locks, nil
	}
	giving, stop := detach(waiting)
	defer stop()
	if end, ok := waiting.Deadline(); ok { // of the whole call, whose last Acquire may have used the grace up: what is left is cleaned up later
		giving, stop = context.WithDeadline(giving, end.Add(releaseGrace))
		defer stop()
	}
	if released := locks.release(ctx, giving); released != nil && !errors.Is(err, ErrLost) { // not part of the error: what is taken is not unavailable too
		l.logger.WarnContext(ctx, "core: release failed; the keys are free when their leases run out", "error", released)
	}
	var taken *TakenError
	if errors.As(err, &taken) && taken.Cause != nil {
		taken.Cause = ended(ctx) // nil where the wait was over, not the caller's context
	}
	return nil, err
}

// acquireEach returns the locks it has got with an error too.
func (l *Locker) acquireEach(ctx, waiting context.Context, keys []string, opts []AcquireOption) (locks Locks, err error) {
	locks = make(Locks, 0, len(keys))
	for _, key := range keys {
		k, err := l.acquire(ctx, waiting, key, opts, false)
		if err != nil {
			return locks, err
		}
		k.parent = ctx // not the context of the wait, which ends with the call
		locks = append(locks, k)
	}
	for _, k := range locks {
		if err := k.Err(); err != nil { // lost while a later one was waited for
			return locks, err
		}
	}
	return locks, nil
}

// Release releases all the locks, the last acquired first, and returns their errors joined. When ctx is done it works for up to 100 ms
// altogether; what could not be freed then is cleaned up later, or lapses with its lease.
func (ks Locks) Release(ctx context.Context) error {
	if len(ks) == 0 {
		return nil
	}
	giving, cancel := detach(ctx)
	defer cancel()
	return ks.release(ctx, giving)
}

func (ks Locks) release(caller, ctx context.Context) error {
	errs := make([]error, 0, len(ks))
	for _, k := range slices.Backward(ks) {
		errs = append(errs, k.release(caller, func(context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} }))
	}
	return errors.Join(errs...)
}

// Unseal frees a key that was sealed. Nothing happens to a key that is free or held. After [*UnavailableError], or ctx's error, it is not
// known whether it is free.
func (l *Locker) Unseal(ctx context.Context, key string) error {
	name, err := backendKey(l.prefix, key)
	if err != nil {
		return err
	}
	defer l.seen.forget(name) // also what was asked meanwhile
	return told(ctx, key, named(l.backend.Unseal(ctx, name), key))
}

// Inspect tells whether key is free, held or sealed, and by whom, without changing it.
func (l *Locker) Inspect(ctx context.Context, key string) (State, error) {
	name, err := backendKey(l.prefix, key)
	if err != nil {
		return State{}, err
	}
	st, err := l.backend.Inspect(ctx, name)
	return st, told(ctx, key, named(err, key))
}

// Close makes every waiting and later Acquire fail with [ErrClosed], cancels the contexts of held locks with that
// cause, and stops renewing them. Holders can still release and seal; what they do not release lapses with its lease.
// It does not close the clients it was given.
func (l *Locker) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	close(l.done)
	var held []*lease
	for _, ln := range l.lines {
		if ln.lease != nil {
			held = append(held, ln.lease)
		}
	}
	l.mu.Unlock()
	for _, s := range held {
		s.abandon()
	}
	if c, ok := l.backend.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

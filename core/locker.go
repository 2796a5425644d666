package core

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/onelane/onelane/internal/loglimit"
	"github.com/onelane/onelane/internal/ownertext"
)

// Locker acquires locks from one backend. It owns what is the same for every backend: waiting,
// re-entrance, renewal and loss. It is safe for concurrent use. A process needs one per backend.
type Locker struct {
	backend Backend
	sealer  Sealer // the backend, or nil if it is no Sealer
	config

	// mu may be taken while a lease's mu is held, never the other way round.
	mu     sync.Mutex
	queues map[string]*queue // by the backend's name of the key
	anys   map[anyID]*anyQueue
	began  time.Time
	blind  bool // the last release did not tell who waits

	// id is this Locker's among those that wait. trip is how long the backend takes for an answer, in
	// ns: a moving average.
	id   string
	trip atomic.Int64

	alarms [manyAlarms]alarms // of the leases
	leases atomic.Uint64      // made so far

	done chan struct{} // closed by Close, which holds mu
}

// New returns a Locker on the backend that o opens, for example redisbackend.New(client). It
// returns an error for bad options and for a backend that cannot work. It does not talk to the
// backend. Close the Locker when the process ends.
//
// In a test with [testing/synctest], make the Locker inside of the bubble: it has timers.
func New(o Opener, opts ...Option) (*Locker, error) {
	if o == nil {
		return nil, errors.New("core: New needs a backend, for example redisbackend.New(client)")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	b, err := o.Open(Environment{TTL: c.ttl, Logger: c.logger, Meter: c.meter()})
	if err != nil {
		return nil, err
	}
	if own, ok := o.(Backend); ok && pointedTo(o) != pointedTo(b) {
		b = own // it embeds another backend, whose Open returned only the inner one
	}
	l := &Locker{id: rand.Text(), began: time.Now(), backend: b, config: *c, queues: make(map[string]*queue), anys: make(map[anyID]*anyQueue), done: make(chan struct{})}
	for i := range l.alarms {
		l.alarms[i].began = l.began
	}
	l.sealer, _ = b.(Sealer)
	l.leasesOnly = l.sealer == nil
	if err := l.settings.valid(); err != nil { // WithOrphan as a default
		return nil, errors.Join(err, b.Close())
	}
	return l, nil
}

// Seals reports whether the Locker's backend is a [Sealer]. If it is none, Seal, Unseal, DoOnce,
// Every, Adopt and WithOrphan fail with [ErrNoSeals].
func (l *Locker) Seals() bool { return l.sealer != nil }

// pointedTo returns the type of v, or that to which it points.
func pointedTo(v any) reflect.Type {
	t := reflect.TypeOf(v)
	if t != nil && t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

var defaultLocker atomic.Pointer[Locker]

// SetDefault sets the Locker that the adapters use if none is named. Call it once, at start.
func SetDefault(l *Locker) { defaultLocker.Store(l) }

// Default returns the Locker passed to [SetDefault], or nil.
func Default() *Locker { return defaultLocker.Load() }

// Acquire holds key for this process. It blocks until the key is free, ctx ends or [WithWait] has
// passed. Waiters of one process are served first come, first served.
//
// A key has 1 to 512 bytes of UTF-8 without control characters; [Join] makes one of several parts.
// If ctx carries a lock on the key ([WithLock]), Acquire returns another handle on it at once.
//
// After an error nothing stays held. The errors are:
//
//   - [*TakenError]: the wait ended. It matches ctx's error if ctx ended the wait.
//   - [*SealedError], [*OrphanedError] and [*UnavailableError]. An error may also match
//     [ErrInvalidKey] or [ErrClosed].
//   - If ctx ended before there was an answer, the error matches ctx's error. Such an error also
//     matches ctx's cause: [ErrLost], for example, if ctx is that of a lost lock. A cause that is
//     another answer about another key is not matched.
//
// The lock is renewed for 15 minutes, or for the time of [WithMaxHold], and is lost after that.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...AcquireOption) (*Lock, error) {
	return l.acquire(ctx, ctx, key, opts, false)
}

// TryAcquire is [Locker.Acquire] without waiting. If another caller holds the key, or waits for it
// in this process, it returns [*TakenError]. If several callers split the votes of a quorum, it
// tries a few times. All other errors are those of Acquire.
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...AcquireOption) (*Lock, error) {
	return l.acquire(ctx, ctx, key, opts, true)
}

// Adopt acquires the key of an orphan that an earlier call returned, and takes the orphan over. If
// the key has another orphan by now, Adopt returns the [*OrphanedError] of that orphan. Combine
// Adopt with [WithOrphan]: if the adopter dies, or its call fails in the middle, the key is
// orphaned again and not free. In everything else Adopt is like [Locker.Acquire].
func (l *Locker) Adopt(ctx context.Context, orphan *OrphanedError, opts ...AcquireOption) (*Lock, error) {
	if orphan == nil || orphan.Owner == "" {
		return nil, errors.New("core: adopt: pass the *OrphanedError that a call returned")
	}
	if !l.Seals() {
		return nil, fmt.Errorf("core: adopt key %q: %w", orphan.Key, ErrNoSeals)
	}
	adopt := acquireOption(func(s *settings) { s.adopt = orphan.Owner })
	return l.acquire(ctx, ctx, orphan.Key, append(slices.Clip(opts), adopt), false)
}

// acquire waits until ctx ends. ctx is the caller's context, or a child that ends sooner.
func (l *Locker) acquire(caller, ctx context.Context, key string, opts []AcquireOption, try bool) (*Lock, error) {
	began, class := time.Now(), l.telemetry.classes.find(key)
	traced, span := l.telemetry.start(ctx, "onelane.acquire", key)
	k, err := l.acquireTraced(ctx, traced, key, class, opts, try)
	theirs := acquireError(caller, key, err)
	l.telemetry.acquired(caller, span, class, began, k, measured(began, err, theirs))
	return k, theirs
}

// acquireTraced calls the backend with traced, a child of ctx. The lock's own context is a child of
// ctx and not of traced, because the span ends before the lock is used.
func (l *Locker) acquireTraced(ctx, traced context.Context, key string, c *class, opts []AcquireOption, try bool) (*Lock, error) {
	name, err := backendKey(l.prefix, key)
	if err != nil {
		return nil, err
	}
	w := &waiter{locker: l, ctx: ctx, traced: traced, key: key, name: name, class: c, settings: l.settings}
	if err := w.apply(opts); err != nil {
		return nil, err
	}
	if cause := context.Cause(ctx); errors.Is(cause, errWaitOver) {
		return nil, w.gaveUp(ctx, nil)
	} else if cause != nil {
		return nil, notAsked(ctx, key)
	}
	if k := l.carriedLock(ctx, name); k != nil {
		if again, err := k.again(ctx, opts); again != nil || err != nil {
			return again, err
		}
	}
	if try || w.wait == 0 {
		return w.acquireNow()
	}
	return w.acquire()
}

// Do runs fn while it holds key, acquired as by [Locker.Acquire], and releases the key when fn
// returns or panics. The context passed to fn carries the lock (see [WithLock]). It is canceled
// with cause [ErrLost] if the lock is lost.
//
// Do returns fn's error. If the lock was lost while fn ran, the error also matches [ErrLost]:
// another holder may have run at the same time. A release that fails for another reason is logged
// and is no error. Then fn ran alone, and the key is free when its lease ends, or orphaned with
// [WithOrphan]. If the lock was lost and fn returned an error or panicked, a key with [WithOrphan]
// stays orphaned.
//
// Commit within fn. If a database transaction encloses Do, it commits only after the lock is
// released.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...AcquireOption) (err error) {
	k, err := l.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	failed := true // stays so after a panic
	defer func() { err = l.releaseAfter(ctx, k, failed, err) }()
	err = fn(WithLock(k.Context(), k))
	failed = err != nil
	return err
}

// releaseAfter releases k after a function that returned err or panicked, and returns the error of
// Do.
func (l *Locker) releaseAfter(ctx context.Context, k *Lock, failed bool, err error) error {
	over := k.Err()
	// After Close nothing renews a lease, and its end is no loss.
	ended := errors.Is(over, ErrLost) || errors.Is(over, ErrClosed) && !time.Now().Before(k.Deadline())
	if failed && k.hold.lease.orphan > 0 && ended {
		k.Lapse() // the function stopped somewhere in the middle: Release would free the orphan
		return errors.Join(err, over)
	}
	released := k.Release(ctx)
	switch {
	case released == nil:
	case errors.Is(released, ErrLost) && err == nil:
		return released
	case errors.Is(released, ErrLost):
		return errors.Join(err, released)
	default:
		l.releaseFailed(k.Key(), released)
	}
	return err
}

// Unseal frees a key that is sealed or orphaned. It leaves a free or held key alone. After
// [*UnavailableError], or ctx's error, it is not known whether the key is free. On a backend that
// cannot seal, the error matches [ErrNoSeals].
func (l *Locker) Unseal(ctx context.Context, key string) error {
	name, err := backendKey(l.prefix, key)
	if err != nil {
		return err
	}
	if !l.Seals() {
		return fmt.Errorf("core: unseal key %q: %w", key, ErrNoSeals)
	}
	return callerError(ctx, key, withKey(l.sealer.Unseal(ctx, name), key))
}

// Inspect returns the state of key without changing it.
func (l *Locker) Inspect(ctx context.Context, key string) (State, error) {
	name, err := backendKey(l.prefix, key)
	if err != nil {
		return State{}, err
	}
	st, err := l.backend.Inspect(ctx, name)
	if st.Status == Held {
		st.Since = ownertext.Asked(st.Owner)
	}
	st.Owner = ownertext.Shown(st.Owner)
	return st, callerError(ctx, key, withKey(err, key))
}

// Revoke frees a key that owner holds, or whose orphan owner left. Take owner from State.Owner,
// which [Locker.Inspect] returns. It is for the person on call, when a holder hangs and cannot be
// ended. If the holder still runs, it learns at its next renewal that the lock is lost. It may work
// on until then: only a resource that checks its fencing token is safe from it. If the key is free
// or sealed, or another owner has it, nothing happens and the error matches [ErrLost].
func (l *Locker) Revoke(ctx context.Context, key, owner string) error {
	name, err := backendKey(l.prefix, key)
	if err != nil {
		return err
	}
	// A sealed value begins with a control character. This check keeps it from passing as an owner.
	if owner == "" || strings.IndexFunc(owner, unicode.IsControl) >= 0 {
		return fmt.Errorf("core: revoke key %q: owner %q is invalid; take it from Inspect", key, owner)
	}
	st, err := l.backend.Inspect(ctx, name)
	if err == nil && owner == ownertext.Shown(st.Owner) {
		owner = st.Owner // another program's
	}
	if err == nil && (st.Owner != owner || st.Status == Sealed) {
		err = fmt.Errorf("%w: the key is %v and not held by %q; look at it with Inspect", ErrLost, st.Status, owner)
	}
	if err == nil {
		_, err = l.backend.Release(ctx, Grant{
			Key: name, Owner: owner, Orphan: ownertext.Orphan(owner), Deadline: time.Now().Add(l.ttl),
		})
	}
	return callerError(ctx, key, withKey(err, key))
}

// Ping reports whether the backend answers, as a readiness check does. It makes connections, so
// that the first Acquire need not wait for them. It asks the server, all masters of a Redis
// Cluster, or all nodes of a quorum at once. With a quorum, it returns when a majority has
// answered. It changes nothing. So it does not notice a server that refuses writes, or nodes of a
// quorum that have just started.
//
// The error names the nodes that did not answer. It is an [*UnavailableError] without a key. If the
// Locker is closed, the error matches [ErrClosed]. If ctx ended first, it matches ctx's error.
func (l *Locker) Ping(ctx context.Context) error {
	if l.isClosed() {
		return fmt.Errorf("core: ping: %w", ErrClosed)
	}
	return callerError(ctx, "", l.backend.Ping(ctx))
}

// Close makes every waiting and later Acquire fail with [ErrClosed], cancels the contexts of held
// locks with that cause, and stops renewing them. Holders can still release and seal. A lease that
// is not released ends at its TTL. Close leaves the backend's clients open.
func (l *Locker) Close() error {
	l.mu.Lock()
	if l.isClosed() {
		l.mu.Unlock()
		return nil
	}
	close(l.done)
	var held []*lease
	for _, q := range l.queues {
		if q.lease != nil {
			held = append(held, q.lease)
		}
	}
	l.mu.Unlock()
	for _, s := range held {
		s.abandon()
	}
	for i := range l.alarms {
		l.alarms[i].close()
	}
	err := l.backend.Close()
	loglimit.Flush(l.logger)
	return err
}

func (l *Locker) isClosed() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// MeterProvider returns the provider of l's metrics. Packages built on l report there, too.
func (l *Locker) MeterProvider() metric.MeterProvider { return l.meters }

// TracerProvider returns the provider of l's spans. Packages built on l report there, too.
func (l *Locker) TracerProvider() trace.TracerProvider { return l.tracers }

// Traces reports whether a call with ctx gets a span. Every call inside of a trace gets one. If
// [WithTelemetry] set the tracer provider, every call gets one. A span costs allocations even if
// nobody records it.
func (l *Locker) Traces(ctx context.Context) bool { return l.telemetry.traces(ctx) }

// Logger returns l's logger. Packages built on l report there, too. The logger writes each message
// at most every 10 s; see [WithLogger].
func (l *Locker) Logger() *slog.Logger { return l.logger }

// Prefix returns the prefix of the names in the backend, see [WithPrefix].
func (l *Locker) Prefix() string { return l.prefix }

// MaxWaiters returns how many callers of this process may wait for one key, or 0 if there is no
// limit; see [WithMaxWaiters].
func (l *Locker) MaxWaiters() int { return l.maxWaiters }

package backendtest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
)

// verbCases are verbs of core.Locker that need more of a backend than one key.
var verbCases = []suiteCase{
	{"AcquireAny_Callers", (*suite).anyCallers},
}

// sealerVerbCases are those of core.Locker that need a core.Sealer.
var sealerVerbCases = []suiteCase{
	{"AcquireAny_Sealed", (*suite).anySealed},
	{"DoOnce", (*suite).doOnce},
	{"Every", (*suite).every},
}

// shared is a backend that several Lockers use. They leave it open. A holder's last call is
// repeated while the backend is unavailable, because a Locker does not repeat it.
type shared struct{ core.Backend }

func (shared) Close() error { return nil }

// sharedSealer is shared for a core.Sealer.
type sharedSealer struct {
	shared
	sealer core.Sealer
}

func (b shared) Open(core.Environment) (core.Backend, error)       { return b, nil }
func (b sharedSealer) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b shared) Release(ctx context.Context, g core.Grant) (w core.Waiters, err error) {
	unknown := false
	err = again(ctx, func() (err error) {
		w, err = b.Backend.Release(ctx, g)
		if unknown && errors.Is(err, core.ErrLost) {
			return nil // the try before did it
		}
		unknown = unknown || errors.Is(err, core.ErrUnavailable)
		return err
	})
	return w, err
}

func (b sharedSealer) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	return again(ctx, func() error { return b.sealer.Seal(ctx, g, value, retention) })
}

func (b sharedSealer) Orphan(ctx context.Context, g core.Grant) error {
	return again(ctx, func() error { return b.sealer.Orphan(ctx, g) })
}

func (b sharedSealer) Unseal(ctx context.Context, key string) error { return b.sealer.Unseal(ctx, key) }

// again repeats a call while the backend is unavailable and ctx lasts.
func again(ctx context.Context, call func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(look) {
		err := call()
		if !errors.Is(err, core.ErrUnavailable) || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

// lockers returns Lockers on the backend, as of several processes.
func (s *suite) lockers(n int) []*core.Locker {
	s.Helper()
	var b core.Opener = shared{s.b}
	if sealer, ok := s.b.(core.Sealer); ok {
		b = sharedSealer{shared{s.b}, sealer}
	}
	all := make([]*core.Locker, n)
	for i := range all {
		l, err := core.New(b, core.WithTTL(long), core.WithOutageWait(patience), core.WithLogger(slog.New(slog.DiscardHandler)))
		s.ok("New", err)
		s.Cleanup(func() { _ = l.Close() })
		all[i] = l
	}
	return all
}

// plainKeys are n keys as a caller of a Locker writes them.
func (s *suite) plainKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = strings.NewReplacer("onelane:", "", "{", "", "}", "").Replace(s.key())
	}
	return keys
}

// anyCallers lets more callers than keys want any key. A key has one holder at a time and its
// tokens increase; every caller gets its locks.
func (s *suite) anyCallers() {
	const callers, each = 6, 5
	lockers, keys := s.lockers(2), s.plainKeys(3)
	ctx, cancel := context.WithTimeout(s.ctx, 2*patience)
	defer cancel()
	var mu sync.Mutex
	inside, last := make(map[string]int), make(map[string]uint64)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for range each {
				k, err := lockers[i%len(lockers)].AcquireAny(ctx, keys, core.WithToken())
				if err != nil {
					s.Errorf("AcquireAny: %v", err)
					return
				}
				var token uint64
				err = s.try(func() (err error) { token, err = k.Token(ctx); return err })
				mu.Lock()
				if inside[k.Key()]++; inside[k.Key()] > 1 || err != nil || token <= last[k.Key()] {
					s.Errorf("%q: %d holders, token %d after %d, %v", k.Key(), inside[k.Key()], token, last[k.Key()], err)
				}
				last[k.Key()] = token
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				inside[k.Key()]--
				mu.Unlock()
				if err := k.Release(ctx); err != nil {
					s.Errorf("Release: %v", err)
				}
			}
		})
	}
	all.Wait()
}

// anySealed passes over sealed and orphaned keys, waits for one that is held elsewhere, and says so
// if there is no other.
func (s *suite) anySealed() {
	lockers, keys := s.lockers(2), s.plainKeys(3)
	k, err := lockers[0].Acquire(s.ctx, keys[0])
	s.ok("Acquire", err)
	s.ok("Seal", k.Seal(s.ctx, []byte("value"), long))
	s.patient(func(ttl time.Duration) bool {
		keys[1] = s.plainKeys(1)[0]
		k, err := lockers[0].Acquire(s.ctx, keys[1], core.WithTTL(ttl), core.WithOrphan(long))
		if errors.Is(err, core.ErrOrphaned) {
			return false // an attempt before got the lock, and its answer was late
		}
		s.ok("Acquire", err)
		k.Lapse()
		s.await("the orphan", func() bool {
			st, err := lockers[1].Inspect(s.ctx, keys[1])
			return err == nil && st.Status == core.Orphaned
		})
		return true
	})
	held, err := lockers[1].AcquireAny(s.ctx, keys)
	s.ok("AcquireAny", err)
	if held.Key() != keys[2] {
		s.Fatalf("AcquireAny got %q, which is sealed or orphaned", held.Key())
	}
	waiter := make(chan error, 1)
	go func() {
		k, err := lockers[0].AcquireAny(s.ctx, keys)
		if err == nil {
			err = k.Seal(s.ctx, nil, long)
		}
		waiter <- err
	}()
	time.Sleep(look)
	s.ok("Release", held.Release(s.ctx))
	select {
	case err := <-waiter:
		s.ok("AcquireAny and Seal of a waiter", err)
	case <-time.After(patience):
		s.Fatalf("a waiter did not get the key that was released")
	}
	_, err = lockers[1].AcquireAny(s.ctx, keys)
	if !errors.Is(err, core.ErrSealed) || !errors.Is(err, core.ErrOrphaned) {
		s.Errorf("AcquireAny of sealed and orphaned keys: %v", err)
	}
}

// doOnce lets many callers run a job: one does, and the others wait for it.
func (s *suite) doOnce() {
	lockers, key := s.lockers(2), s.plainKeys(1)[0]
	for round := range 2 {
		var runs, ran atomic.Int64
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				did, err := lockers[i%len(lockers)].DoOnce(s.ctx, key, long, func(context.Context) error {
					runs.Add(1)
					time.Sleep(look)
					return nil
				})
				if err != nil {
					s.Errorf("DoOnce: %v", err)
				}
				if did {
					ran.Add(1)
				}
			})
		}
		all.Wait()
		if runs.Load() != 1 || ran.Load() != 1 {
			s.Errorf("round %d: the job ran %d times, and %d callers say so", round, runs.Load(), ran.Load())
		}
		s.ok("Unseal", s.try(func() error { return lockers[0].Unseal(s.ctx, key) }))
	}
}

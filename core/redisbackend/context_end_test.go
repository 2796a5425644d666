package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// hanging makes a backend of each kind, and what makes its Redis lose all requests.
var hanging = map[string]func(t *testing.T) (b redisbackend.Config, hang func()){
	"one Redis":       func(t *testing.T) (redisbackend.Config, func()) { return hangingClients(t, 1) },
	"quorum":          func(t *testing.T) (redisbackend.Config, func()) { return hangingClients(t, 3) },
	"pool":            func(t *testing.T) (redisbackend.Config, func()) { return hangingPools(t, 1) },
	"quorum of pools": func(t *testing.T) (redisbackend.Config, func()) { return hangingPools(t, 3) },
}

func hangingClients(t *testing.T, n int) (redisbackend.Config, func()) {
	nodes := testutil.Cluster(t, n)
	b := redisbackend.New(nodes.Clients()...)
	return b, func() { stopAll(t, nodes) }
}

func hangingPools(t *testing.T, n int) (redisbackend.Config, func()) {
	nodes := testutil.Cluster(t, n)
	return redisbackend.Pools(nodes.Pools()...), func() { stopAll(t, nodes) }
}

func stopAll(t *testing.T, nodes testutil.Nodes) {
	for _, n := range nodes {
		n.Stop()
		t.Cleanup(n.Cont)
	}
}

// verbs are all calls that ask the backend. held returns a lock.
func verbs(l *core.Locker, held func() *core.Lock) map[string]func(context.Context) error {
	all := map[string]func(context.Context) error{
		"Acquire":    func(ctx context.Context) error { _, err := l.Acquire(ctx, "free"); return err },
		"TryAcquire": func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "free too"); return err },
		"AcquireAll": func(ctx context.Context) error { _, err := l.AcquireAll(ctx, []string{"a", "b"}); return err },
		"Inspect":    func(ctx context.Context) error { _, err := l.Inspect(ctx, "free"); return err },
		"Unseal":     func(ctx context.Context) error { return l.Unseal(ctx, "free") },
		"Ping":       l.Ping,
		"Revoke":     func(ctx context.Context) error { return l.Revoke(ctx, "free", "somebody") },
		"Token":      func(ctx context.Context) error { return tokenError(ctx, held()) },
		"Extend":     func(ctx context.Context) error { return held().Extend(ctx, 30*time.Second) },
		"Seal":       func(ctx context.Context) error { return held().Seal(ctx, []byte("v"), time.Minute) },
		"Release":    func(ctx context.Context) error { return held().Release(ctx) },
	}
	if !l.Seals() { // a quorum
		delete(all, "Seal")
		delete(all, "Unseal")
	}
	return all
}

func tokenError(ctx context.Context, k *core.Lock) error {
	n, err := k.Token(ctx)
	if n != 0 { // a quorum's lock has one
		return fmt.Errorf("known: %w", context.DeadlineExceeded)
	}
	return err
}

// The end of the caller's context says nothing about the backend: FailOpen of the adapters would run
// a request for a client that is gone.
func TestContext_EndIsNeverUnavailable(t *testing.T) {
	t.Parallel()
	for name, open := range hanging {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, hang := open(t)
			b.NodeTimeout, b.NewInstallation = time.Minute, true // calls are slower than their contexts
			l := locker(t, b, core.WithTTL(30*time.Second), core.WithMaxHold(0))
			locks := make(chan *core.Lock, 10)
			for i := range cap(locks) {
				locks <- acquire(t, l, fmt.Sprint("k", i))
			}
			calls := verbs(l, func() *core.Lock { return <-locks })
			hang()
			var all sync.WaitGroup
			for what, call := range calls {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
					defer cancel()
					err := call(ctx)
					if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, core.ErrUnavailable) || errors.Is(err, core.ErrLost) {
						t.Errorf("%s: got %v, want the context's error alone", what, err)
					}
				})
			}
			all.Wait()
		})
	}
}

// A time-out of the backend is not the end of the caller's context, by which a server would answer
// that its client's deadline passed.
func TestContext_TimeoutIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, open := range hanging {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, hang := open(t)
			b.NodeTimeout, b.NewInstallation = time.Second, true
			l := locker(t, b, core.WithTTL(30*time.Second), core.WithMaxHold(0), core.WithOutageWait(0))
			locks := make(chan *core.Lock, 10)
			for i := range cap(locks) {
				locks <- acquire(t, l, fmt.Sprint("k", i), core.WithOutageWait(30*time.Second)) // on a busy machine
			}
			calls := verbs(l, func() *core.Lock { return <-locks })
			delete(calls, "Token") // a quorum's lock has one
			hang()
			var all sync.WaitGroup
			for what, call := range calls {
				all.Go(func() {
					err := call(context.Background())
					if !errors.Is(err, core.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
						t.Errorf("%s: got %v, want ErrUnavailable alone", what, err)
					}
				})
			}
			all.Wait()
		})
	}
}

package core_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

// A process that shuts down can still leave the answers of what it has done.
func TestClose_HoldersCanStillSeal(t *testing.T) {
	t.Parallel()
	b := testutil.Memory()
	l, err := core.New(b)
	ok(t, "New", err)
	k, released := acquire(t, l, "k"), acquire(t, l, "released")
	ok(t, "Close", l.Close())
	ok(t, "Seal after Close", k.Seal(t.Context(), []byte("v"), time.Minute))
	ok(t, "Release after Seal", k.Release(t.Context()))
	_, err = locker(t, b).TryAcquire(t.Context(), "k")
	want(t, "TryAcquire", err, core.ErrSealed)
	ok(t, "Release after Close", released.Release(t.Context()))
	if released.Seal(t.Context(), []byte("v"), time.Minute) == nil {
		t.Error("a released lock was sealed")
	}
}

// The subscription is being connected anew, and the server does not answer.
func TestClose_DoesNotWaitForAConnection(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	admin := node.Client()
	var hang atomic.Bool
	dialing, goOn := make(chan struct{}, 100), make(chan struct{})
	client := redis.NewClient(&redis.Options{Addr: node.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if hang.Load() {
			dialing <- struct{}{}
			<-goOn
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	t.Cleanup(func() { _ = client.Close() })
	defer close(goOn)
	l, err := core.New(core.Clients(client))
	ok(t, "New", err)
	acquire(t, locker(t, core.Clients(node.Client())), "k")
	waited := make(chan error, 1)
	go func() {
		_, err := l.Acquire(context.Background(), "k")
		waited <- err
	}()
	eventually(t, "the waiter is subscribed", func() bool {
		n, err := admin.PubSubNumSub(t.Context(), "onelane:{k}:free").Result()
		return err == nil && n["onelane:{k}:free"] == 1
	})
	hang.Store(true)
	ok(t, "CLIENT KILL", admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
	<-dialing
	done := make(chan error, 1)
	go func() { done <- l.Close() }()
	select {
	case err := <-done:
		ok(t, "Close", err)
	case <-time.After(2 * hung):
		t.Error("Close waits for a connection that is not there")
	}
	want(t, "the waiter", <-waited, core.ErrClosed)
}

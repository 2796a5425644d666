package rueidisdriver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/redisbackend/internal/driver"
	"github.com/onelane/onelane/testutil"
)

func connect(t *testing.T, n *testutil.Node) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{n.Addr()}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// A call on a connection that another call's time-out ended has no time-out itself: it is sent again.
func TestLine_EndedByAnother(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := &newConn(connect(t, node)).lone
	t.Cleanup(l.close)
	ping := []*driver.Command{driver.Plain("PING")}
	long, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := l.do(long, ping); err != nil {
		t.Fatal(err)
	}
	node.Stop()
	t.Cleanup(node.Cont)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // not over before the call begins
	defer cancel()
	if err := l.current.Load().do(ctx, ping); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want a time-out", err)
	}
	if _, err := l.do(long, ping); !errors.Is(err, net.ErrClosed) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want an error that matches net.ErrClosed alone", err)
	}
	if l.current.Load() != nil {
		t.Error("later calls use the connection, too")
	}
}

// While a connection takes long, a call waits as long as its time-out. A call with a short one fails at
// once.
func TestLine_ConnectsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		l := &line{open: func() (*wire, error) {
			time.Sleep(3 * time.Second)
			return nil, refused
		}}
		call := func(limit time.Duration, want error) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if _, err := l.do(ctx, []*driver.Command{driver.Plain("PING")}); !errors.Is(err, want) {
				t.Errorf("a call with a time-out of %v: %v, want %v", limit, err, want)
			}
		}
		call(time.Second, context.DeadlineExceeded) // it begins to connect
		time.Sleep(500 * time.Millisecond)
		call(time.Second, errConnecting)
		call(time.Minute, refused)
	})
}

// Sentinel names another master, and the old one goes on to answer.
func TestConn_OldMasterStillAnswers(t *testing.T) {
	t.Parallel()
	old, promoted := testutil.Redis(t), testutil.Redis(t)
	var master atomic.Pointer[testutil.Node]
	master.Store(old)
	clients := map[*testutil.Node]rueidis.Client{old: connect(t, old), promoted: connect(t, promoted)}
	c := openConn(true, func() string { return master.Load().Addr() }, func() (rueidis.DedicatedClient, func(), error) {
		one, release := clients[master.Load()].Dedicate()
		return one, release, nil
	})
	l, err := core.New(redisbackend.Drive(driver.Driver{Nodes: []func() driver.Node{c.node}}), core.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	admin := promoted.Client()
	for end := time.Now().Add(30 * time.Second); admin.Exists(t.Context(), "onelane:{k}").Val() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("locks are still on the old master after 30 s")
		}
		k, err := l.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		master.Store(promoted)
		if admin.Exists(t.Context(), "onelane:{k}").Val() == 1 {
			break
		}
		if err := k.Release(t.Context()); err != nil && !errors.Is(err, core.ErrLost) && !errors.Is(err, core.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

// A clock that was set back does not keep a connection from asking who the master is.
func TestWire_ClockSetBack(t *testing.T) {
	t.Parallel()
	w := &wire{address: "old", moved: func() string { return "new" }}
	w.until.Store(time.Now().Add(time.Hour).UnixNano()) // set before the clock went back
	if !w.isOld() {
		t.Error("the replaced master is used until the clock is where it was")
	}
}

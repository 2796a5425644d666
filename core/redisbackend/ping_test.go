package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/redisbackend/internal/driver"
	"github.com/onelane/onelane/testutil"
)

// kinds are the kinds of backends, each with its nodes.
var kinds = map[string]func(t *testing.T) (core.Opener, testutil.Nodes){
	"client": func(t *testing.T) (core.Opener, testutil.Nodes) {
		n := testutil.Redis(t)
		return one(n.Client()), testutil.Nodes{n}
	},
	"pool": func(t *testing.T) (core.Opener, testutil.Nodes) {
		n := testutil.Redis(t)
		return redisbackend.Pools(n.Pool()), testutil.Nodes{n}
	},
	"client with replicas": func(t *testing.T) (core.Opener, testutil.Nodes) {
		master, _ := replicated(t, 1)
		return confirmed(master.Client(), 1, replicaTimeout), testutil.Nodes{master}
	},
	"Redis Cluster": func(t *testing.T) (core.Opener, testutil.Nodes) {
		c := testutil.RedisCluster(t, 3)
		return one(c.Client()), c.Nodes
	},
	"quorum": func(t *testing.T) (core.Opener, testutil.Nodes) {
		nodes := testutil.Cluster(t, 3)
		return quorumOf(nodes), nodes
	},
	"quorum of pools": func(t *testing.T) (core.Opener, testutil.Nodes) {
		nodes := testutil.Cluster(t, 3)
		c := redisbackend.Pools(nodes.Pools()...)
		c.NewInstallation = true
		return c, nodes
	},
}

// After Ping, the first Acquire makes no connection.
func TestPing_WarmsConnections(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, nodes := kind(t)
			var admins []*redis.Client
			for _, n := range nodes {
				admins = append(admins, n.Client())
			}
			// made counts the connections that the nodes have accepted so far.
			made := func() (all int) {
				for _, admin := range admins {
					all += statistic(t, admin, "total_connections_received")
				}
				return all
			}
			made()
			// A check of the backend's own, a second after its start, may need a connection, too. And the last
			// node of a quorum may answer late.
			extra := 0
			for range 20 {
				l, before := locker(t, o), made()
				answered(t, l)
				eventually(t, "the other nodes of a quorum are connected", func() bool {
					return strings.Contains(name, "pool") || made()-before >= len(nodes)
				})
				before = made()
				k := acquire(t, l, "k")
				if extra = made() - before; extra == 0 {
					return
				}
				_ = k.Release(t.Context()) // a busy machine may be too late for the answer
			}
			t.Errorf("Acquire made %d connections after Ping", extra)
		})
	}
}

// answered waits until a Ping is answered: a busy machine may be too late for the first one.
func answered(t *testing.T, l *core.Locker) {
	t.Helper()
	eventually(t, "Ping", func() bool { return l.Ping(t.Context()) == nil })
}

// Ping names the nodes that do not answer if no majority is left, and the shards of a Redis Cluster.
func TestPing_NamesNodesThatAreDown(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, nodes := kind(t)
			l := locker(t, o)
			answered(t, l)
			down := nodes[len(nodes)-1:]
			if strings.HasPrefix(name, "quorum") {
				nodes[2].Kill()
				answered(t, l) // with one node down
				nodes[1].Kill()
				down = nodes[1:]
			} else {
				down[0].Kill()
			}
			var err error
			names := func(n *testutil.Node) bool {
				if i := slices.Index(nodes, n); strings.Contains(name, "pool") {
					return strings.Contains(err.Error(), fmt.Sprint("redis pool ", i+1, ":"))
				}
				return strings.Contains(err.Error(), n.Addr())
			}
			eventually(t, "Ping names no node that answers", func() bool { // but one that a busy machine delays
				err = l.Ping(t.Context())
				want(t, "Ping", err, core.ErrUnavailable)
				return !slices.ContainsFunc(nodes, func(n *testutil.Node) bool { return names(n) && !slices.Contains(down, n) })
			})
			for _, n := range down {
				if !names(n) {
					t.Errorf("node %s is down; the error: %v", n.Addr(), err)
				}
			}
			if u, found := errors.AsType[*core.UnavailableError](err); !found || u.Key != "" || len(u.Nodes) != len(down) {
				t.Errorf("Ping: %#v", err)
			}
			for _, n := range down {
				n.Restart()
			}
			eventually(t, "they answer again", func() bool { return l.Ping(t.Context()) == nil })
		})
	}
}

// A Redis that hangs does not hold Ping up for longer than its context, or the time-outs.
func TestPing_HungNode(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, nodes := kind(t)
			if c := o.(redisbackend.Config); c.NodeTimeout > 0 {
				c.NodeTimeout = time.Second
				o = c
			}
			l := locker(t, o)
			answered(t, l)
			stopAll(t, nodes)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			wantEnded(t, "Ping with a context that ends", l.Ping(ctx), context.DeadlineExceeded)
			began := time.Now()
			want(t, "Ping", l.Ping(t.Context()), core.ErrUnavailable)
			if took := time.Since(began); took > 6*time.Second {
				t.Errorf("Ping took %v", took)
			}
		})
	}
}

// A user that may not even ask for the time cannot have locks; one that may not PING can.
func TestPing_Forbidden(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	ok(t, "Ping without PING", locker(t, one(restricted(t, n, neededCommands))).Ping(t.Context()))
	err := locker(t, one(restricted(t, n, []string{"hello"}))).Ping(t.Context())
	want(t, "Ping without a permission", err, core.ErrUnavailable)
	if !strings.Contains(err.Error(), "NOPERM") || !strings.Contains(err.Error(), n.Addr()) {
		t.Errorf("Ping: %v", err)
	}
}

// lateConnection answers after its caller has gone.
type lateConnection struct {
	sent, written, ended chan struct{}
	gone                 <-chan struct{}
}

func (c *lateConnection) Connect(context.Context) error { return nil }

func (c *lateConnection) Exec(commands []*driver.Command, _, _ time.Time) error {
	close(c.sent)
	<-c.gone
	for _, cmd := range commands {
		cmd.Value, cmd.Err = nil, errors.New("late")
	}
	close(c.written)
	<-c.ended
	return nil
}

func (c *lateConnection) Disconnect() {}
func (c *lateConnection) Close()      {}

// A call that was given up may still write its replies. If Ping reads them, the race detector fails
// the test.
func TestPing_GivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cn := &lateConnection{make(chan struct{}), make(chan struct{}), make(chan struct{}), ctx.Done()}
	b := open(t, redisbackend.Drive(driver.Driver{Nodes: []func() driver.Node{func() driver.Node {
		return driver.Node{Address: func() string { return "late" }, Open: func() driver.Connection { return cn }}
	}}}))
	go func() {
		<-cn.sent
		cancel()
	}()
	want(t, "Ping", b.Ping(ctx), context.Canceled)
	<-cn.written
	close(cn.ended)
}

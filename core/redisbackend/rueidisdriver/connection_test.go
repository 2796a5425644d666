package rueidisdriver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/redisbackend/internal/driver"
	"github.com/onelane/onelane/testutil"
)

func connect(t *testing.T, o rueidis.ClientOption) rueidis.Client {
	t.Helper()
	o.DisableCache = true
	client, err := rueidis.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func optionsOf(n *testutil.Node) rueidis.ClientOption {
	return rueidis.ClientOption{InitAddress: []string{n.Addr()}, ConnWriteTimeout: 2 * time.Minute}
}

// connected returns a connection that is ready.
func connected(t *testing.T, client rueidis.Client) driver.Connection {
	t.Helper()
	cn := newNode(client).Open()
	t.Cleanup(cn.Close)
	if err := cn.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return cn
}

func soon(d time.Duration) time.Time { return time.Now().Add(d) }

// A call ends at the deadline of its callers, even if another goroutine reads. A later call on the
// connection is before its own deadline, so the engine sends it again on another one.
func TestConnection_Deadline(t *testing.T) {
	t.Parallel()
	for name, always := range map[string]bool{"alone": false, "AlwaysPipelining": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testutil.Redis(t)
			o := optionsOf(node)
			o.AlwaysPipelining = always
			cn := connected(t, connect(t, o))
			node.Stop()
			t.Cleanup(node.Cont)
			for _, commands := range [][]*driver.Command{{driver.Plain("PING")}, {driver.Plain("PING"), driver.Plain("TIME")}} {
				err := cn.Exec(commands, soon(time.Hour), soon(50*time.Millisecond))
				for _, c := range commands {
					if !errors.Is(c.Err, err) || err == nil {
						t.Errorf("the error of %s is %v, that of the connection %v", c.Words[0], c.Err, err)
					}
				}
				if over := errors.Is(err, context.DeadlineExceeded); over != (len(commands) == 1 || always) || !over && !errors.Is(err, net.ErrClosed) {
					t.Errorf("%d commands: %v", len(commands), err)
				}
			}
		})
	}
}

// A connect ends with its context. Rueidis goes on to dial, and the next connect uses that connection.
func TestConnection_ConnectGivenUp(t *testing.T) {
	t.Parallel()
	var dials atomic.Int64
	first := make(chan struct{})
	o := optionsOf(testutil.Redis(t))
	o.ForceSingleClient = true
	client := connect(t, o)
	n := &node{client: func() (rueidis.Client, error) {
		dials.Add(1)
		<-first
		return client, nil
	}}
	cn := n.open()
	defer cn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := cn.Connect(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Connect: %v", err)
	}
	cn.Disconnect()
	close(first)
	if err := cn.Connect(t.Context()); err != nil || dials.Load() != 1 {
		t.Errorf("Connect: %v, after %d dials", err, dials.Load())
	}
	ping := driver.Plain("PING")
	if err := cn.Exec([]*driver.Command{ping}, soon(time.Minute), time.Time{}); err != nil || ping.Value != "PONG" {
		t.Errorf("PING: %v, %v", ping.Value, err)
	}
}

// breaking is a connection that ends when it has sent a SET.
type breaking struct {
	net.Conn
	sent *atomic.Int64
	over atomic.Bool
}

func (b *breaking) Write(p []byte) (int, error) {
	if n := bytes.Count(p, []byte("\r\nset\r\n")); n > 0 {
		b.sent.Add(int64(n))
		b.over.Store(true)
	}
	return b.Conn.Write(p)
}

func (b *breaking) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if b.over.Load() {
		return 0, io.EOF
	}
	return n, err
}

// Rueidis sends nothing twice: the backend must know what an earlier try may have done.
func TestConnection_NothingSentTwice(t *testing.T) {
	t.Parallel()
	for name, commands := range map[string][]*driver.Command{
		"one": {driver.Plain("set", "k", "v")},
		"two": {driver.Plain("set", "k", "v"), driver.Plain("get", "k")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			o := optionsOf(testutil.Redis(t))
			o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				wire, err := d.DialContext(ctx, "tcp", addr)
				return &breaking{Conn: wire, sent: &sent}, err
			}
			err := connected(t, connect(t, o)).Exec(commands, soon(time.Minute), time.Time{})
			if !errors.Is(err, net.ErrClosed) || errors.Is(err, driver.ErrNotSent) {
				t.Errorf("the connection's error is %v", err)
			}
			if n := sent.Load(); n != 1 {
				t.Errorf("SET was sent %d times", n)
			}
		})
	}
}

// Sentinel names another master, and the old one goes on to answer.
func TestNode_OldMasterStillAnswers(t *testing.T) {
	t.Parallel()
	old, promoted := testutil.Redis(t), testutil.Redis(t)
	var master atomic.Pointer[testutil.Node]
	master.Store(old)
	clients := map[*testutil.Node]rueidis.Client{old: connect(t, optionsOf(old)), promoted: connect(t, optionsOf(promoted))}
	open := func() driver.Node {
		return openNode(true, func() string { return master.Load().Addr() }, func() (rueidis.Client, error) { return clients[master.Load()], nil })
	}
	l, err := core.New(redisbackend.Drive(driver.Driver{Nodes: []func() driver.Node{open}}), core.WithLogger(slog.New(slog.DiscardHandler)))
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

package core_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

// proxy stands between a client and a Redis, and can lose replies.
type proxy struct {
	net.Listener
	target string
	cut    atomic.Int64 // how many replies to lose, each with its connection
	delay  atomic.Int64 // how long to keep the next request back, in ns
	late   atomic.Int64 // how long to keep each reply back, in ns
	lose   atomic.Bool  // requests, without a sign
	part   atomic.Int64 // how many bytes of the next reply to let through before its connection ends; 0: all
}

// proxied is a proxy and its client for each node.
func proxied(t testing.TB, nodes testutil.Nodes) (proxies []*proxy, clients []redis.UniversalClient) {
	for _, n := range nodes {
		p := newProxy(t, n.Addr())
		client := redis.NewClient(&redis.Options{Addr: p.Addr().String()})
		t.Cleanup(func() { _ = client.Close() })
		proxies, clients = append(proxies, p), append(clients, client)
	}
	return proxies, clients
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, "Listen", err)
	p := &proxy{Listener: l, target: target}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if err != nil {
				return
			}
			time.Sleep(time.Duration(p.delay.Swap(0)))
			if p.lose.Load() {
				continue
			}
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil || p.cut.Add(-1) >= 0 {
			return
		}
		time.Sleep(time.Duration(p.late.Load()))
		if part := int(p.part.Swap(0)); part > 0 {
			_, _ = client.Write(buf[:min(part, n)])
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// The request has its effect, and the reply is lost with the connection: the try that follows knows its own work.
func TestLostReply_TheNextTryKnowsItsOwnWork(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(*redis.Client) redis.UniversalClient{
		"client":                          func(c *redis.Client) redis.UniversalClient { return c },
		"client that retries as it likes": func(c *redis.Client) redis.UniversalClient { return struct{ redis.UniversalClient }{c} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testutil.Redis(t)
			p := newProxy(t, node.Addr())
			client := redis.NewClient(&redis.Options{Addr: p.Addr().String(), PoolSize: 1})
			t.Cleanup(func() { _ = client.Close() })
			lostReplies(t, p, locker(t, core.Clients(wrap(client))))
		})
	}
}

func lostReplies(t *testing.T, p *proxy, l *core.Locker) {
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))

	p.cut.Store(1)
	k := acquire(t, l, "k")
	p.cut.Store(1)
	ok(t, "Release", k.Release(t.Context()))
	if got := status(t, l, "k"); got != core.Free {
		t.Errorf("key is %v", got)
	}
	k = acquire(t, l, "k")
	p.cut.Store(1)
	ok(t, "Seal", k.Seal(t.Context(), []byte("v"), time.Minute))
	p.cut.Store(1)
	_, err := l.TryAcquire(t.Context(), "k")
	want(t, "TryAcquire", err, core.ErrSealed)
}

// A reply that ends in the middle, wherever that is, is one that was lost.
func TestLostReply_CutAtEachByte(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	client := redis.NewClient(&redis.Options{Addr: p.Addr().String(), PoolSize: 1, Protocol: 2})
	t.Cleanup(func() { _ = client.Close() })
	l := locker(t, core.Clients(client))
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	last := uint64(0)
	for n := range int64(40) {
		key := fmt.Sprint("k", n%3)
		p.part.Store(n)
		k := acquire(t, l, key)
		if k.Token() <= last {
			t.Fatalf("token %d after %d", k.Token(), last)
		}
		last = k.Token()
		p.part.Store(n)
		ok(t, "Extend", k.Extend(t.Context(), time.Minute))
		p.part.Store(n)
		if n%2 == 0 {
			ok(t, "Release", k.Release(t.Context()))
			continue
		}
		ok(t, "Seal", k.Seal(t.Context(), []byte("v"), time.Minute))
		p.part.Store(n)
		_, err := l.TryAcquire(t.Context(), key)
		var sealed *core.SealedError
		if !errors.As(err, &sealed) || string(sealed.Value) != "v" || sealed.Token != last {
			t.Fatalf("after %d bytes: %v", n, err)
		}
		p.part.Store(n)
		ok(t, "Unseal", l.Unseal(t.Context(), key))
	}
}

// When every reply is lost the outcome is unknown, and what was set is cleaned up.
func TestLostReplies_AreUnavailableAndCleanedUp(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	client := redis.NewClient(&redis.Options{Addr: p.Addr().String(), PoolSize: 1})
	t.Cleanup(func() { _ = client.Close() })
	l, direct := locker(t, core.Clients(client)), locker(t, core.Clients(node.Client()))
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	p.cut.Store(1 << 20)
	_, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
	want(t, "Acquire", err, core.ErrUnavailable)
	p.cut.Store(0)
	eventually(t, "the key is free", func() bool { return status(t, direct, "k") == core.Free })
}

const childVar = "ONELANE_CORE_CHILD_"

// startChild starts this test binary as a process of its own with a job to do, see TestMain.
func startChild(t testing.TB, job string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	ok(t, "Executable", err)
	cmd := exec.CommandContext(context.Background(), self)
	cmd.Env = append(os.Environ(), childVar+job)
	cmd.Stderr = os.Stderr
	ok(t, "Start", cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

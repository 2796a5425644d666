package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// proxy stands between a client and a Redis, and can lose replies. It loses none that a new connection
// asks for: whether one is being made just then is chance.
type proxy struct {
	net.Listener
	target string
	cut    atomic.Int64 // How many replies to lose, each with its connection.
	delay  atomic.Int64 // How long to keep the next request back, in ns.
	late   atomic.Int64 // How long to keep each reply back, in ns.
	lose   atomic.Bool  // Requests are lost without a sign.
	dark   atomic.Bool  // Replies, too, as behind a firewall that drops packets.
	part   atomic.Int64 // How many bytes of the next reply pass before its connection ends; 0: all.
}

var handshake = regexp.MustCompile(`(?i)\r\n(hello|client|ping)\r\n`)

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
	var isNew atomic.Bool
	go func() {
		defer server.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if err != nil {
				return
			}
			isNew.Store(handshake.Match(buf[:n]))
			time.Sleep(time.Duration(p.delay.Swap(0)))
			if p.lose.Load() || p.dark.Load() {
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
		if err != nil {
			return
		}
		if p.dark.Load() {
			continue
		}
		if !isNew.Load() {
			if p.cut.Add(-1) >= 0 {
				return
			}
			if part := int(p.part.Swap(0)); part > 0 {
				_, _ = client.Write(buf[:min(part, n)])
				return
			}
		}
		time.Sleep(time.Duration(p.late.Load()))
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// The request has its effect, and the reply is lost with the connection.
func TestLostReply_NextTryKnowsItsOwnWork(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	l := locker(t, one(newClient(t, &redis.Options{Addr: p.Addr().String()})))
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	for _, opts := range [][]core.AcquireOption{nil, {core.WithToken()}} {
		p.cut.Store(1)
		k := acquire(t, l, "k", opts...)
		p.cut.Store(1)
		ok(t, "Extend", k.Extend(t.Context(), time.Minute))
		p.cut.Store(1)
		ok(t, "Release", k.Release(t.Context()))
		if got := status(t, l, "k"); got != core.Free {
			t.Errorf("key is %v", got)
		}
		k = acquire(t, l, "k", opts...)
		p.cut.Store(1)
		ok(t, "Seal", k.Seal(t.Context(), []byte("v"), time.Minute))
		p.cut.Store(1)
		_, err := l.TryAcquire(t.Context(), "k", opts...)
		want(t, "TryAcquire", err, core.ErrSealed)
		p.cut.Store(1)
		ok(t, "Unseal", l.Unseal(t.Context(), "k"))
	}
}

// A reply that ends in the middle is one that was lost, wherever it ends.
func TestLostReply_CutAtEachByte(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	l := locker(t, one(newClient(t, &redis.Options{Addr: p.Addr().String()})), core.WithToken())
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	last := uint64(0)
	for n := range int64(40) {
		key := fmt.Sprint("k", n%3)
		p.part.Store(n)
		k := acquire(t, l, key)
		if token(t, k) <= last {
			t.Fatalf("token %d after %d", token(t, k), last)
		}
		last = token(t, k)
		p.part.Store(n)
		ok(t, "Extend", k.Extend(t.Context(), time.Minute))
		p.part.Store(n)
		if n%2 == 0 {
			ok(t, "Release", k.Release(t.Context()))
			continue
		}
		ok(t, "Seal", k.Seal(t.Context(), []byte("v"), time.Minute))
		p.part.Store(n)
		eventually(t, "an answer", func() bool {
			_, err := l.TryAcquire(t.Context(), key)
			if sealed, is := errors.AsType[*core.SealedError](err); is && string(sealed.Value) == "v" && sealed.Token == last {
				return true
			}
			want(t, fmt.Sprintf("TryAcquire after %d bytes", n), err, core.ErrUnavailable) // a busy machine
			return false
		})
		p.part.Store(n)
		ok(t, "Unseal", l.Unseal(t.Context(), key))
	}
}

// If every reply is lost, the outcome is unknown, and what was set is cleaned up.
func TestLostReplies_AreCleanedUp(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	l, direct := locker(t, one(newClient(t, &redis.Options{Addr: p.Addr().String()})), core.WithOutageWait(0)), locker(t, one(node.Client()))
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	p.cut.Store(1 << 20)
	_, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
	want(t, "Acquire", err, core.ErrUnavailable)
	p.cut.Store(0)
	eventually(t, "the key is free", func() bool { return status(t, direct, "k") == core.Free })
}

const childVar = "ONELANE_REDISBACKEND_CHILD_"

// startChild starts this test binary as a separate process with a job; see TestMain.
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

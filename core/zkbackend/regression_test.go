package zkbackend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
)

// An Extend with an older grant of the same lease leaves what a later one granted.
func TestExtend_OlderGrantShortensNothing(t *testing.T) {
	t.Parallel()
	node := shared(t)
	b, other := open(t, at(t, node.Addr())), open(t, at(t, node.Addr()))
	older, err := b.Acquire(t.Context(), request("k", time.Minute))
	ok(t, "Acquire", err)
	longer, err := b.Extend(t.Context(), older, time.Hour)
	ok(t, "Extend", err)
	_, err = b.Extend(t.Context(), older, time.Minute)
	ok(t, "Extend of the older grant", err)
	st, err := other.Inspect(t.Context(), "k")
	ok(t, "Inspect", err)
	if left := time.Until(longer.Deadline); st.ExpiresIn < left {
		t.Errorf("the lease ends in %v, and %v were granted", st.ExpiresIn, left)
	}
}

// The nodes above the root may be of somebody else, who lets nobody make nodes there.
func TestRoot_ParentForbidsNewNodes(t *testing.T) {
	t.Parallel()
	node := shared(t)
	c := client(t, node.Addr())
	_, err := c.Create(rootOf(t), nil, 0, zk.WorldACL(zk.PermAll))
	ok(t, "Create", err)
	_, err = c.Create(rootOf(t)+"/locks", nil, 0, zk.WorldACL(zk.PermAll))
	ok(t, "Create", err)
	_, err = c.SetACL(rootOf(t), zk.WorldACL(zk.PermRead), -1)
	ok(t, "SetACL", err)
	b := open(t, at(t, node.Addr(), zkbackend.WithRoot(rootOf(t)+"/locks")))
	_, err = b.Acquire(t.Context(), request("k", time.Hour))
	ok(t, "Acquire", err)
}

// The reply of an adoption is lost. The work that the orphan stands for is not over.
func TestLostReply_FailedAdoptionLeavesAnOrphan(t *testing.T) {
	t.Parallel()
	node := shared(t)
	p := newProxy(t, node.Addr())
	b, direct := open(t, at(t, p.addr())), open(t, at(t, node.Addr()))
	r := request("k", time.Second)
	r.Orphan = time.Hour
	first := acquire(t, b, r)
	eventually(t, "the orphan", func() bool {
		_, err := b.Acquire(t.Context(), request("k", time.Minute))
		return errors.Is(err, core.ErrOrphaned)
	})
	adopt := request("k", 2*time.Second)
	adopt.Orphan, adopt.Adopt = time.Hour, first.Owner
	_, stop, err := b.Watch(t.Context(), "k") // it looks before it writes
	ok(t, "Watch", err)
	defer stop()
	lost := func() { p.lose.Store(1) }
	p.before.Store(&lost)
	_, err = b.Acquire(t.Context(), adopt)
	want(t, "the adoption", err, core.ErrUnavailable)
	eventually(t, "the adoption's orphan", func() bool {
		st, err := direct.Inspect(t.Context(), "k")
		ok(t, "Inspect", err)
		if st.Status == core.Free {
			t.Fatal("the key is free")
		}
		return st.Status == core.Orphaned && st.Owner == adopt.Owner
	})
}

// The context ends and the backend is closed while an Acquire is under way.
func TestClose_FreesWhatACancelledAcquireGets(t *testing.T) {
	t.Parallel()
	node := shared(t)
	p := newProxy(t, node.Addr())
	direct := open(t, at(t, node.Addr()))
	attempt := func(key string) core.Status {
		g, err := direct.Acquire(t.Context(), request(key, time.Hour))
		ok(t, "Acquire", err)
		_, err = direct.Release(t.Context(), g)
		ok(t, "Release", err)
		b := open(t, at(t, p.addr()))
		ok(t, "Ping", b.Ping(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		slow := func() {
			cancel()
			time.Sleep(200 * time.Millisecond)
		}
		p.before.Store(&slow)
		r := request(key, time.Hour)
		r.Orphan = time.Hour
		_, err = b.Acquire(ctx, r)
		want(t, "Acquire", err, context.Canceled)
		ok(t, "Close", b.Close())
		st, err := direct.Inspect(t.Context(), key)
		ok(t, "Inspect", err)
		return st.Status
	}
	// Close gives up after a second, in which a busy machine may do nothing.
	for i := range 5 {
		if attempt(fmt.Sprint("k", i)) == core.Free {
			return
		}
	}
	t.Error("the keys stay held")
}

// A second value is refused, and does not get into the first one's pieces.
func TestSeal_AnotherLongValueLeavesTheFirst(t *testing.T) {
	t.Parallel()
	b := open(t, at(t, shared(t).Addr()))
	g, err := b.Acquire(t.Context(), request("k", time.Hour))
	ok(t, "Acquire", err)
	const size = 600 << 10
	first, second := bytes.Repeat([]byte("a"), size), bytes.Repeat([]byte("b"), size)
	ok(t, "Seal", b.Seal(t.Context(), g, first, time.Hour))
	want(t, "Seal with another value", b.Seal(t.Context(), g, second, time.Hour), core.ErrLost)
	sealedWith(t, b, first)
}

func sealedWith(t testing.TB, b core.Sealer, value []byte) {
	t.Helper()
	st, err := b.Inspect(t.Context(), "k")
	ok(t, "Inspect", err)
	if st.Status != core.Sealed || !bytes.Equal(st.Value, value) {
		t.Errorf("the key is %v, with %d bytes that are not the value", st.Status, len(st.Value))
	}
}

// A Seal that has written its pieces does not seal those of another one, which has failed since.
func TestSeal_PiecesOfAnotherSeal(t *testing.T) {
	t.Parallel()
	node := shared(t)
	p, c := newProxy(t, node.Addr()), client(t, node.Addr())
	b := open(t, at(t, p.addr()))
	g, err := b.Acquire(t.Context(), request("k", time.Hour))
	ok(t, "Acquire", err)
	guard := keyNodes(t, node.Addr(), rootOf(t))[1]
	written := false
	var other func()
	other = func() {
		_, err := c.Set(guard+"/1", []byte("other"), -1)
		if written = err == nil; !written {
			p.before.Store(&other)
		}
	}
	p.before.Store(&other)
	value := bytes.Repeat([]byte("a"), 600<<10)
	ok(t, "Seal", b.Seal(t.Context(), g, value, time.Hour))
	if !written {
		t.Error("the other Seal wrote nothing")
	}
	sealedWith(t, b, value)
}

// Holders can still release and seal after Close of their Locker.
func TestClose_HoldersCanStillReleaseAndSeal(t *testing.T) {
	t.Parallel()
	node := shared(t)
	l := locker(t, at(t, node.Addr()))
	other := locker(t, at(t, node.Addr()))
	k, err := l.Acquire(t.Context(), "k", core.WithOrphan(time.Hour))
	ok(t, "Acquire", err)
	sealed, err := l.Acquire(t.Context(), "sealed")
	ok(t, "Acquire", err)
	ok(t, "Close", l.Close())
	ok(t, "Seal after Close", sealed.Seal(t.Context(), []byte("v"), time.Hour))
	ok(t, "Release after Close", k.Release(t.Context()))
	st, err := other.Inspect(t.Context(), "k")
	ok(t, "Inspect", err)
	if st.Status != core.Free {
		t.Errorf("the key is %v", st.Status)
	}
	_, err = other.TryAcquire(t.Context(), "sealed")
	want(t, "TryAcquire", err, core.ErrSealed)
}

// idle returns a backend that has learned the leader's time.
func idle(t *testing.T, addr string) core.Sealer {
	t.Helper()
	b := open(t, at(t, addr))
	g, err := b.Acquire(t.Context(), request("warm", time.Hour))
	ok(t, "Acquire", err)
	_, err = b.Release(t.Context(), g)
	ok(t, "Release", err)
	return b
}

// A process that has written nothing for long does not end the seals of others. Its clock is even
// worse than it may be.
func TestSeal_OutlastsTheClockOfAnIdleProcess(t *testing.T) {
	t.Parallel()
	node := shared(t)
	b, other := idle(t, node.Addr()), open(t, at(t, node.Addr()))
	zkbackend.Idle(b, 12*time.Hour, 2)
	g, err := other.Acquire(t.Context(), request("k", time.Hour))
	ok(t, "Acquire", err)
	ok(t, "Seal", other.Seal(t.Context(), g, []byte("v"), 5*time.Minute))
	ok(t, "Sweep", zkbackend.Sweep(t.Context(), b))
	sealedWith(t, b, []byte("v"))
	sealedWith(t, other, []byte("v"))
}

// A clock that is fast by 1 % makes nothing older than it is.
func TestClock_MayBeFast(t *testing.T) {
	t.Parallel()
	b := idle(t, shared(t).Addr())
	if age := zkbackend.Idle(b, 9*time.Minute, 1); age > 4*time.Second {
		t.Errorf("what the leader says now was said %v ago", age)
	}
}

// beforeGuard runs fn before the first request that names a guard.
type beforeGuard struct {
	net.Conn
	guard []byte
	fn    *atomic.Pointer[func()]
}

func (c beforeGuard) Write(p []byte) (int, error) {
	if bytes.Contains(p, c.guard) {
		if fn := c.fn.Swap(nil); fn != nil {
			(*fn)()
		}
	}
	return c.Conn.Write(p)
}

// The key is unsealed between the two reads of Inspect.
func TestInspect_UnsealedMeanwhile(t *testing.T) {
	t.Parallel()
	node := shared(t)
	other := open(t, at(t, node.Addr()))
	g, err := other.Acquire(t.Context(), request("k", time.Hour))
	ok(t, "Acquire", err)
	ok(t, "Seal", other.Seal(t.Context(), g, []byte("v"), time.Hour))
	name := keyNodes(t, node.Addr(), rootOf(t))[1]
	guard := []byte(name[strings.LastIndexByte(name, '/')+1:])
	var hook atomic.Pointer[func()]
	b := open(t, at(t, node.Addr(), zkbackend.WithDialer(func(n, a string, d time.Duration) (net.Conn, error) {
		c, err := dialPatiently(n, a, d)
		if err != nil {
			return nil, err
		}
		return beforeGuard{c, guard, &hook}, nil
	})))
	ok(t, "Ping", b.Ping(t.Context()))
	unseal := func() { ok(t, "Unseal", other.Unseal(t.Context(), "k")) }
	hook.Store(&unseal)
	st, err := b.Inspect(t.Context(), "k")
	ok(t, "Inspect", err)
	if hook.Load() != nil {
		t.Fatal("the key was not unsealed in the middle")
	}
	if st.Status != core.Free {
		t.Errorf("a free key is %v with value %q", st.Status, st.Value)
	}
}

// The connection breaks before it is authenticated, so nothing was sent that needs a clean-up.
func TestConnect_NothingWasSent(t *testing.T) {
	t.Parallel()
	p := newProxy(t, shared(t).Addr())
	p.lose.Store(1 << 30) // the first reply on each connection is that to the authentication
	b := open(t, at(t, p.addr(), zkbackend.WithAuth("digest", "user:password")))
	_, err := b.Acquire(t.Context(), request("k", time.Hour))
	want(t, "Acquire", err, core.ErrUnavailable)
	ok(t, "Close", b.Close()) // it waits until the attempt has decided
	if n := zkbackend.CleanUps(b); n != 0 {
		t.Errorf("%d clean-ups of a request that was not sent", n)
	}
}

// brokenWrite is a connection that breaks with one of its writes.
type brokenWrite struct {
	net.Conn
	left int // writes until then; below 0 it does not break
}

func (c *brokenWrite) Write(p []byte) (int, error) {
	if c.left--; c.left == 0 {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// The connection breaks while the library authenticates it anew. Then go-zookeeper 1.0.4 answers its
// own request twice, and waits forever for somebody who takes the second answer.
func TestAuth_ConnectionBreaksMeanwhile(t *testing.T) {
	t.Parallel()
	p := newProxy(t, shared(t).Addr())
	var dials atomic.Int64
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		c, err := dialPatiently(network, addr, timeout)
		if err != nil {
			return nil, err
		}
		broken := &brokenWrite{Conn: c}
		if dials.Add(1) == 2 {
			broken.left = 2 // the first is the handshake, and the second the authentication
		}
		return broken, nil
	}
	b := open(t, at(t, p.addr(), zkbackend.WithAuth("digest", "me:secret"), zkbackend.WithDialer(dial)))
	ok(t, "Ping", b.Ping(t.Context()))
	p.end()
	eventually(t, "the backend connects a third time", func() bool { return b.Ping(t.Context()) == nil && dials.Load() > 2 })
}

// A service in another language holds a key "forever". In nanoseconds that is less than nothing, and
// nobody may take it for a lease that has ended.
func TestNode_LastsForEver(t *testing.T) {
	t.Parallel()
	node := shared(t)
	b := open(t, at(t, node.Addr()))
	g, err := b.Acquire(t.Context(), request("k", time.Minute))
	ok(t, "Acquire", err)
	path := keyNodes(t, node.Addr(), rootOf(t))[0]
	c := client(t, node.Addr())
	theirs := "onelane1 held 9223372036854775807 0 0 0 0\n" + g.Owner
	_, err = c.Set(path, []byte(theirs), -1)
	ok(t, "Set", err)
	_, err = b.Acquire(t.Context(), request("k", time.Minute))
	want(t, "Acquire", err, core.ErrInvalidKey)
	ok(t, "Sweep", zkbackend.Sweep(t.Context(), b))
	text, _, err := c.Get(path)
	ok(t, "Get", err)
	if string(text) != theirs {
		t.Errorf("the node's text is now %q", text)
	}
}

package zkbackend_test

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
)

func TestNew_Invalid(t *testing.T) {
	one := []string{"localhost:2181"}
	for _, c := range []struct {
		opener core.Opener
		says   string
	}{
		{zkbackend.New(nil), "at least one server"},
		{zkbackend.New([]string{"zk1:2181", ":2181"}), `server 2, ":2181"`},
		{zkbackend.New([]string{"zk1:2181,zk2:2181"}), "is not host:port"},
		{zkbackend.New([]string{"zk1:2181", "zk2:2181/app"}), `server 2, "zk2:2181/app", has a chroot, which is no part of an address: write "zk2:2181" and WithRoot("/app/onelane")`},
		{zkbackend.New([]string{"zk1/a/b"}, zkbackend.WithRoot("/locks")), `write "zk1" and WithRoot("/a/b/locks")`},
		{zkbackend.New([]string{"zk1:2181/"}), `write "zk1:2181" and WithRoot("/onelane")`},
		{zkbackend.New(one, zkbackend.WithTimeout(0)), "must be positive"},
		{zkbackend.New(one, zkbackend.WithDialer(nil)), "dialer"},
		{zkbackend.New(one, zkbackend.WithRoot("locks")), `root "locks"`},
		{zkbackend.New(one, zkbackend.WithRoot("/")), `root "/"`},
		{zkbackend.New(one, zkbackend.WithRoot("/a/../b")), `root "/a/../b"`},
	} {
		_, err := core.New(c.opener)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "zkbackend: ") {
			t.Errorf("got %v, want an error that says %q", err, c.says)
		}
	}
	l, err := core.New(zkbackend.New([]string{"localhost"}, nil, zkbackend.WithRoot("/a/b.c")))
	ok(t, "New", err)
	ok(t, "Close", l.Close())
}

func TestOptions_RootsShareNothing(t *testing.T) {
	t.Parallel()
	node := shared(t)
	for _, root := range []string{rootOf(t), "/teams/shop/locks"} {
		b := open(t, at(t, node.Addr(), zkbackend.WithRoot(root)))
		g, err := b.Acquire(t.Context(), request("k", time.Minute))
		ok(t, "Acquire below "+root, err)
		if nodes := keyNodes(t, node.Addr(), root); len(nodes) != 2 || !strings.HasSuffix(nodes[0], "/k") {
			t.Errorf("below %s there are %v, want the key and its guard", root, nodes)
		}
		_, err = b.Release(t.Context(), g)
		ok(t, "Release", err)
	}
}

// Nodes that were made with an identity are for that identity only, even after the connection
// broke.
func TestOptions_Auth(t *testing.T) {
	t.Parallel()
	node := shared(t)
	p := newProxy(t, node.Addr())
	mine := open(t, at(t, p.addr(), zkbackend.WithAuth("digest", "me:secret")))
	g, err := mine.Acquire(t.Context(), request("k", time.Minute))
	ok(t, "Acquire", err)
	p.end()
	eventually(t, "the connection is made again", func() bool {
		g, err = mine.Extend(t.Context(), g, time.Minute)
		return err == nil
	})
	for _, opts := range [][]zkbackend.Option{nil, {zkbackend.WithAuth("digest", "me:wrong")}} {
		other := open(t, at(t, node.Addr(), opts...))
		_, err := other.Acquire(t.Context(), request("k2", time.Minute))
		u, is := errors.AsType[*core.UnavailableError](err)
		if !is || !u.Permanent || !strings.Contains(err.Error(), "WithAuth") {
			t.Errorf("another identity got %v, want an error that is permanent and says WithAuth", err)
		}
	}
	_, err = mine.Release(t.Context(), g)
	ok(t, "Release", err)
}

func TestOptions_Dialer(t *testing.T) {
	t.Parallel()
	node := shared(t)
	dialed := make(chan string, 1)
	b := open(t, at(t, "zookeeper.invalid:2281",
		zkbackend.WithDialer(func(network, addr string, timeout time.Duration) (net.Conn, error) {
			select {
			case dialed <- addr:
			default:
			}
			return dialPatiently(network, node.Addr(), timeout)
		})))
	ok(t, "Ping", b.Ping(t.Context()))
	if addr := <-dialed; addr != "zookeeper.invalid:2281" {
		t.Errorf("dialed %q", addr)
	}
}

// A node with a text of somebody else is left alone.
func TestRoot_OfSomebodyElse(t *testing.T) {
	t.Parallel()
	node := shared(t)
	b := open(t, at(t, node.Addr()))
	g, err := b.Acquire(t.Context(), request("k", time.Minute))
	ok(t, "Acquire", err)
	path := keyNodes(t, node.Addr(), rootOf(t))[0]
	c := client(t, node.Addr())
	_, err = c.Set(path, []byte("theirs"), -1)
	ok(t, "Set", err)
	_, err = b.Acquire(t.Context(), request("k", time.Minute))
	want(t, "Acquire", err, core.ErrInvalidKey)
	_, err = b.Release(t.Context(), g)
	want(t, "Release", err, core.ErrInvalidKey)
	want(t, "Unseal", b.Unseal(t.Context(), "k"), core.ErrInvalidKey)
	ok(t, "Sweep", zkbackend.Sweep(t.Context(), b))
	text, _, err := c.Get(path)
	ok(t, "Get", err)
	if string(text) != "theirs" {
		t.Errorf("the node's text is now %q", text)
	}
}

// Without its scheme WithAuth would do nothing: the nodes would be open to everybody. A variable of
// the environment that is not set does that.
func TestWithAuth_NoScheme(t *testing.T) {
	t.Parallel()
	for _, credentials := range []string{"", "me:secret"} {
		l, err := core.New(zkbackend.New([]string{"localhost:2181"}, zkbackend.WithAuth(os.Getenv("NOT_SET"), credentials)))
		if err == nil {
			ok(t, "Close", l.Close())
		}
		if err == nil || !strings.Contains(err.Error(), "zkbackend: WithAuth") {
			t.Errorf(`WithAuth("", %q): %v, want an error that says WithAuth`, credentials, err)
		}
	}
}

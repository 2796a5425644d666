package redisbackend_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// tokens is a provider of credentials, as that of Entra ID.
type tokens struct{ subscribed, ended atomic.Int64 }

func (p *tokens) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	p.subscribed.Add(1)
	return auth.NewBasicCredentials("app", "secret"), func() error { p.ended.Add(1); return nil }, nil
}

// A StreamingCredentialsProvider authenticates the backend's own connections.
func TestClient_StreamingCredentials(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	if !node.Real() {
		return // a miniredis has no users
	}
	ok(t, "ACL SETUSER", node.Client().Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all").Err())
	provider := new(tokens)
	l := locker(t, one(newClient(t, &redis.Options{Addr: node.Addr(), StreamingCredentialsProvider: provider})))
	k := acquire(t, l, "k")
	if list := node.Client().ClientList(t.Context()).Val(); !strings.Contains(list, "user=app") {
		t.Errorf("no connection of the user: %s", list)
	}
	ok(t, "Release", k.Release(t.Context()))
	ok(t, "Close", l.Close())
	eventually(t, "the connections have unsubscribed", func() bool { return provider.ended.Load() > 0 })
}

// tunnel is a connection without an address, as a stream of a multiplexer or the pipes of a command.
type tunnel struct{ net.Conn }

func (tunnel) RemoteAddr() net.Addr { return nil }

// The connection of a Dialer may have no address.
func TestClient_ConnectionWithoutAddress(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, one(newClient(t, &redis.Options{Addr: node.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return tunnel{c}, err
	}})))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
}

// refreshed is a provider whose token is refreshed just after a connection has subscribed.
type refreshed struct{}

func (refreshed) Subscribe(l auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	token := auth.NewBasicCredentials("app", "secret")
	l.OnNext(token)
	return token, func() error { return nil }, nil
}

// watched counts the AUTH that go-redis sends by itself. HELLO, which begins a connection, does not
// count.
type watched struct {
	net.Conn
	auths *atomic.Int64
}

func (w watched) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(b)
	if bytes.HasPrefix(b, []byte("*3\r\n$4\r\nauth\r\n")) {
		w.auths.Add(1)
		time.Sleep(time.Second) // the process is busy
	}
	return n, err
}

// go-redis sends AUTH with the new token on a connection that is back in its pool. The backend uses
// that connection itself: the answer to AUTH must not be taken for that of a lock.
func TestClient_CredentialsChangeWhileItConnects(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	if !node.Real() {
		return // a miniredis has no users
	}
	ok(t, "ACL SETUSER", node.Client().Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all").Err())
	acquire(t, locker(t, one(node.Client())), "k", core.WithTTL(time.Minute))
	var auths atomic.Int64
	l := locker(t, one(newClient(t, &redis.Options{Addr: node.Addr(), StreamingCredentialsProvider: refreshed{},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			return watched{c, &auths}, err
		}})))
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := l.TryAcquire(ctx, "k")
		cancel()
		if err == nil {
			t.Fatal("two hold k: the answer of another command was taken for that of SET")
		}
		if !errors.Is(err, core.ErrTaken) {
			t.Errorf("TryAcquire of a key that is held: %v", err)
		}
	}
	if n := auths.Load(); n > 0 {
		t.Errorf("go-redis sent %d AUTH on a connection that the backend uses", n)
	}
}

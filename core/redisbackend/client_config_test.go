package redisbackend_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

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

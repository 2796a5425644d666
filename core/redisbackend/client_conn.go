package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

const (
	// callConnections is how many connections to one Redis a backend has at most for its calls.
	// Those for renewals are renewalConnections, and never wait behind other calls. A quorum has
	// one to each master, because each call goes to all of them. To share a pipeline saves a third
	// of the CPU time there.
	callConnections    = 4
	quorumConnections  = 1
	renewalConnections = 2

	// followTime is how long a connection that Sentinel chose is used before the next one asks
	// Sentinel again. A master that was replaced may go on to answer us.
	followTime = 3 * time.Second
)

// sentinelAddr returns the address that go-redis gives to all Sentinel clients. go-redis does not
// promise it, so a client is asked. With a wrong one, connections to a master that was replaced
// would stay.
var sentinelAddr = sync.OnceValue(func() string {
	client := redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: []string{"localhost:26379"}}) // dials nothing
	defer client.Close()
	return client.Options().Addr
})

// clientConn reaches one Redis over connections of its own, with the options of a go-redis client.
// It does not use the client's connection pool: the application may exhaust that.
type clientConn struct {
	options  redis.Options
	calls    *connections
	renewals *connections
	remote   atomic.Pointer[string] // where the last connection went
}

func newClientConn(client *redis.Client, l *latency, most int) *clientConn {
	c := &clientConn{options: ownOptions(client.Options())}
	c.calls = newConnections(c.open, l, most)
	c.renewals = newConnections(c.open, l, renewalConnections)
	return c
}

// ownOptions returns a client's options without those that belong to the application.
func ownOptions(o *redis.Options) (own redis.Options) {
	// An unexported field makes the connections of a Redis Cluster READONLY. Then a master that was
	// demoted would run scripts instead of redirecting them.
	from, to := reflect.ValueOf(o).Elem(), reflect.ValueOf(&own).Elem()
	for i := range from.NumField() {
		if to.Field(i).CanSet() {
			to.Field(i).Set(from.Field(i))
		}
	}
	// One connection for each client, so that its Dialer is called for that connection only.
	own.PoolSize, own.MinIdleConns, own.MaxIdleConns, own.MaxActiveConns, own.PipelinePoolSize = 1, 0, 0, 0, -1
	own.DialerRetries, own.MaxRetries = 1, -1 // tries are counted by node
	// The context alone bounds a call.
	own.ContextTimeoutEnabled, own.ReadTimeout, own.WriteTimeout = true, -1, -1
	own.Protocol, own.PushNotificationProcessor, own.ClientSideCacheConfig, own.ClientSideCache = 2, nil, nil, nil
	own.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	own.AutoPipelineOptions, own.Limiter = nil, nil
	own.DisableIdentity = true // it would be one more round trip
	if p := own.StreamingCredentialsProvider; p != nil {
		own.StreamingCredentialsProvider = current{p}
	}
	return own
}

// current passes on the current credentials of a provider, and no later ones. With later ones,
// go-redis would send AUTH on a connection that the backend uses, and read the answer to another
// command.
type current struct {
	auth.StreamingCredentialsProvider
}

func (p current) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return p.StreamingCredentialsProvider.Subscribe(new(deaf))
}

// deaf has a size, because a provider tells its listeners apart by their addresses.
type deaf struct{ _ byte }

func (*deaf) OnNext(auth.Credentials) {}
func (*deaf) OnError(error)           {}

// open makes a connection.
func (c *clientConn) open(ctx context.Context) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.DialTimeout)
	defer cancel()
	cn, err := newConnection(ctx, c.options)
	if err != nil {
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	// The connection of a Dialer may have no address.
	if addr := cn.wire.RemoteAddr(); addr != nil {
		remote := addr.String()
		c.remote.Store(&remote)
	}
	if life := c.life(); life > 0 {
		cn.end = time.Now().Add(life)
	}
	return cn, nil
}

// life returns how long a connection is used, or 0 for ever.
func (c *clientConn) life() time.Duration {
	life := c.options.ConnMaxLifetime
	if c.options.Addr == sentinelAddr() && (life <= 0 || life > followTime) {
		return followTime
	}
	return max(life, 0)
}

func (c *clientConn) Address() string {
	if remote := c.remote.Load(); remote != nil && c.options.Addr == sentinelAddr() {
		return *remote
	}
	return c.options.Addr
}

func (c *clientConn) Do(ctx context.Context, commands ...*command) (<-chan struct{}, error) {
	if commands[0].Renewal {
		return c.renewals.do(ctx, commands...)
	}
	return c.calls.do(ctx, commands...)
}

func (c *clientConn) Close() error {
	return errors.Join(c.calls.close(), c.renewals.close())
}

// listen opens a pub/sub connection.
func (c *clientConn) listen(ctx context.Context, heard func(driver.Event)) (driver.PubSub, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.DialTimeout)
	defer cancel()
	client, wire, err := dial(ctx, c.options)
	if err != nil {
		return nil, err
	}
	sub := &clientPubSub{PubSub: client.Subscribe(context.Background()), client: client, wire: wire}
	if err := sub.Ping(ctx); err != nil && !isServerReply(err) {
		sub.Close()
		return nil, err
	}
	go sub.receive(heard)
	return sub, nil
}

// clientPubSub is a pub/sub connection of its own.
type clientPubSub struct {
	*redis.PubSub
	client *redis.Client
	wire   net.Conn // its only connection
}

// receive passes on what the server sends.
func (s *clientPubSub) receive(heard func(driver.Event)) {
	for {
		msg, err := s.Receive(context.Background())
		switch m := msg.(type) {
		case *redis.Message:
			heard(driver.Event{Kind: "message", Channel: m.Channel, Payload: m.Payload})
		case *redis.Subscription:
			heard(driver.Event{Kind: m.Kind, Channel: m.Channel})
		default:
			heard(driver.Event{Err: err})
		}
		if err != nil {
			return
		}
	}
}

func (s *clientPubSub) Subscribe(ctx context.Context, sharded bool, channels ...string) error {
	if sharded {
		return s.PubSub.SSubscribe(ctx, channels...)
	}
	return s.PubSub.Subscribe(ctx, channels...)
}

func (s *clientPubSub) Unsubscribe(ctx context.Context, sharded bool, channels ...string) error {
	if sharded {
		return s.PubSub.SUnsubscribe(ctx, channels...)
	}
	return s.PubSub.Unsubscribe(ctx, channels...)
}

func (s *clientPubSub) Ping(ctx context.Context) error { return s.PubSub.Ping(ctx) }

func (s *clientPubSub) Close() {
	_ = s.wire.Close()
	_ = s.PubSub.Close()
	_ = s.client.Close()
}

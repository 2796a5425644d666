package redisbackend

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// goRedisNoDeadlines is what go-redis takes for a time-out that it never sets: the wire has the
// deadlines.
const goRedisNoDeadlines = -2

// sentinelAddr returns the address that go-redis gives to all Sentinel clients. go-redis does not
// promise it, so a client is asked. With a wrong one, connections to a master that was replaced
// would stay.
var sentinelAddr = sync.OnceValue(func() string {
	client := redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: []string{"localhost:26379"}}) // dials nothing
	defer client.Close()
	return client.Options().Addr
})

// clientNode makes connections to one Redis by clients of its own, each with one connection and the
// options of the application's client. It does not use that client's connection pool: the application
// may exhaust it.
type clientNode struct {
	options redis.Options
	listens *clientConnection            // of the waiters
	sub     atomic.Pointer[clientPubSub] // the last one
	remote  atomic.Pointer[string]       // where the last connection for calls went
}

func newClientNode(client *redis.Client) driver.Node {
	c := &clientNode{options: ownOptions(client.Options())}
	listens := c.options
	listens.ContextTimeoutEnabled, listens.ReadTimeout, listens.WriteTimeout = true, -1, -1
	c.listens = newClientConnection(listens, c.dial, c.connectTimeout())
	return driver.Node{Address: c.address, Open: c.open, Listen: c.listen, Close: c.listens.Close,
		Follows: c.options.Addr == sentinelAddr(), ConnectLimit: c.connectTimeout(), Life: c.life,
		IdleLimit: c.options.ConnMaxIdleTime, Limiter: client.Options().Limiter}
}

func (c *clientNode) open() driver.Connection {
	return newClientConnection(c.options, c.dialCalls, c.connectTimeout())
}

// ownOptions returns those of a client's options that its server and its network need.
func ownOptions(o *redis.Options) redis.Options {
	own := redis.Options{
		Network: o.Network, Addr: o.Addr, NodeAddress: o.NodeAddress, DB: o.DB, ClientName: o.ClientName, TLSConfig: o.TLSConfig,
		Username: o.Username, Password: o.Password, CredentialsProvider: o.CredentialsProvider,
		CredentialsProviderContext: o.CredentialsProviderContext, StreamingCredentialsProvider: o.StreamingCredentialsProvider,
		Dialer: o.Dialer, OnConnect: o.OnConnect, DialTimeout: o.DialTimeout,
		ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime, ConnMaxLifetimeJitter: o.ConnMaxLifetimeJitter,

		// A client for each connection. Its time-outs are the backend's.
		PoolSize: 1, PoolTimeout: longestConnect, PipelinePoolSize: -1,
		ReadTimeout: goRedisNoDeadlines, WriteTimeout: goRedisNoDeadlines,
		DialerRetries: 1, MaxRetries: -1, // tries are counted by node
		ReadBufferSize: 16 << 10, WriteBufferSize: 32 << 10,
		Protocol: 2, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DisableIdentity: true, // it would be one more round trip
	}
	careful(&own)
	return own
}

// dialCalls makes a connection for calls or renewals.
func (c *clientNode) dialCalls(ctx context.Context) (net.Conn, error) {
	conn, err := c.dial(ctx)
	if err == nil && conn.RemoteAddr() != nil { // the connection of a Dialer may have no address
		c.leads(conn.RemoteAddr().String())
	}
	return conn, err
}

func (c *clientNode) dial(ctx context.Context) (conn net.Conn, err error) {
	err = recovered("Dialer", func() (err error) {
		if conn, err = c.options.Dialer(ctx, c.options.Network, c.options.Addr); err == nil && conn == nil {
			err = errNilConnection
		}
		return err
	})
	return conn, err
}

// connectTimeout bounds dialing and the handshake. go-redis has a negative DialTimeout for none.
func (c *clientNode) connectTimeout() time.Duration {
	if c.options.DialTimeout < 0 {
		return longestConnect
	}
	return c.options.DialTimeout
}

// leads notes where a new connection went. A subscription to another server hears nothing any more.
func (c *clientNode) leads(addr string) {
	before := c.remote.Swap(&addr)
	if before == nil || *before == addr || c.options.Addr != sentinelAddr() {
		return
	}
	if sub := c.sub.Load(); sub != nil && sub.remote() != addr {
		_ = sub.wire.Close() // the waiters' session makes another one
	}
}

// life returns how long the options let a connection be used, or 0 for no limit.
func (c *clientNode) life() time.Duration {
	life := max(c.options.ConnMaxLifetime, 0)
	if spread := min(c.options.ConnMaxLifetimeJitter, life); spread > 0 {
		life += rand.N(2*spread) - spread
	}
	return life
}

func (c *clientNode) address() string {
	if remote := c.remote.Load(); remote != nil && c.options.Addr == sentinelAddr() {
		return *remote
	}
	return c.options.Addr
}

// listen opens a pub/sub connection.
func (c *clientNode) listen(ctx context.Context, heard func(driver.Event)) (driver.PubSub, error) {
	ctx, cancel := context.WithTimeout(ctx, c.connectTimeout())
	defer cancel()
	// go-redis would make another connection, and subscribe, without the waiters' session.
	c.listens.dialing.Store(true)
	defer c.listens.dialing.Store(false)
	defer c.listens.boundedBy(ctx)()
	sub := &clientPubSub{PubSub: c.listens.client.Subscribe(context.Background())}
	err := sub.Ping(ctx)
	sub.wire = c.listens.dialed.Swap(nil)
	if sub.wire == nil || err != nil && !isServerReply(err) {
		sub.Close()
		return nil, cmp.Or(err, errNoHandshake)
	}
	sub.wire.soft = time.Time{} // what follows has the deadlines of go-redis
	_ = sub.wire.Conn.SetDeadline(time.Time{})
	c.sub.Store(sub)
	go sub.receive(heard)
	return sub, nil
}

// clientPubSub is a pub/sub connection of its own.
type clientPubSub struct {
	*redis.PubSub
	wire *wire
}

// remote returns the address of the server, or "".
func (s *clientPubSub) remote() string {
	if addr := s.wire.RemoteAddr(); addr != nil {
		return addr.String()
	}
	return ""
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
	if s.wire != nil {
		_ = s.wire.Close()
	}
	_ = s.PubSub.Close()
}

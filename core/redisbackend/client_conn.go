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

const (
	// callConnections is how many connections to one Redis a backend has at most for its calls.
	// Those for renewals are renewalConnections, and never wait behind other calls. A quorum has
	// one to each master, because each call goes to all of them.
	callConnections    = 4
	quorumConnections  = 1
	renewalConnections = 2

	// followTime is how long a connection that Sentinel chose is used before the next one asks
	// Sentinel again. A master that was replaced may go on to answer us.
	followTime = 3 * time.Second

	// longestConnect bounds a handshake if the client has no DialTimeout.
	longestConnect = 30 * time.Second

	// goRedisNoDeadlines is what go-redis takes for a time-out that it never sets: the wire has
	// the deadlines.
	goRedisNoDeadlines = -2
)

// sentinelAddr returns the address that go-redis gives to all Sentinel clients. go-redis does not
// promise it, so a client is asked. With a wrong one, connections to a master that was replaced
// would stay.
var sentinelAddr = sync.OnceValue(func() string {
	client := redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: []string{"localhost:26379"}}) // dials nothing
	defer client.Close()
	return client.Options().Addr
})

// clientConn reaches one Redis over clients of its own, each with one connection and the options of
// the application's client. It does not use that client's connection pool: the application may
// exhaust it.
type clientConn struct {
	options  redis.Options
	calls    *connections
	renewals *connections
	listens  *connection                  // of the waiters
	sub      atomic.Pointer[clientPubSub] // the last one
	remote   atomic.Pointer[string]       // where the last connection for calls went
}

func newClientConn(client *redis.Client, l *latency, r *replicas, most int) *clientConn {
	c := &clientConn{options: ownOptions(client.Options())}
	limiter := client.Options().Limiter
	c.calls, c.renewals = c.newConnections(l, r, limiter, most), c.newConnections(l, r, limiter, renewalConnections)
	listens := c.options
	listens.ContextTimeoutEnabled, listens.ReadTimeout, listens.WriteTimeout = true, -1, -1
	c.listens = newConnection(listens, c.dial, c.connectTimeout())
	return c
}

func (c *clientConn) newConnections(l *latency, r *replicas, limiter redis.Limiter, most int) *connections {
	open := func() *connection { return newConnection(c.options, c.dialCalls, c.connectTimeout()) }
	made := newConnections(open, l, most)
	made.connectLimit, made.life = c.connectTimeout(), c.life
	made.replicas, made.limiter, made.idleLimit = r, limiter, c.options.ConnMaxIdleTime
	return made
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
func (c *clientConn) dialCalls(ctx context.Context) (net.Conn, error) {
	conn, err := c.dial(ctx)
	if err == nil && conn.RemoteAddr() != nil { // the connection of a Dialer may have no address
		c.leads(conn.RemoteAddr().String())
	}
	return conn, err
}

func (c *clientConn) dial(ctx context.Context) (conn net.Conn, err error) {
	err = recovered("Dialer", func() (err error) {
		if conn, err = c.options.Dialer(ctx, c.options.Network, c.options.Addr); err == nil && conn == nil {
			err = errNilConnection
		}
		return err
	})
	return conn, err
}

// connectTimeout bounds dialing and the handshake. go-redis has a negative DialTimeout for none.
func (c *clientConn) connectTimeout() time.Duration {
	if c.options.DialTimeout < 0 {
		return longestConnect
	}
	return c.options.DialTimeout
}

// leads notes where a new connection went. A subscription to another server hears nothing any more.
func (c *clientConn) leads(addr string) {
	before := c.remote.Swap(&addr)
	if before == nil || *before == addr || c.options.Addr != sentinelAddr() {
		return
	}
	if sub := c.sub.Load(); sub != nil && sub.remote() != addr {
		_ = sub.wire.Close() // the waiters' session makes another one
	}
}

// life returns how long a connection is used, or 0 for no limit.
func (c *clientConn) life() time.Duration {
	life := max(c.options.ConnMaxLifetime, 0)
	if spread := min(c.options.ConnMaxLifetimeJitter, life); spread > 0 {
		life += rand.N(2*spread) - spread
	}
	if c.options.Addr == sentinelAddr() && (life == 0 || life > followTime) {
		return followTime
	}
	return life
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
	c.calls.close()
	c.renewals.close()
	_ = c.listens.client.Close() // the second Close of a backend has nothing to close
	return nil
}

// listen opens a pub/sub connection.
func (c *clientConn) listen(ctx context.Context, heard func(driver.Event)) (driver.PubSub, error) {
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

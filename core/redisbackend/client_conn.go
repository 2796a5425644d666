package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	// one to each master, because each call goes to all of them. To share a pipeline saves a third
	// of the CPU time there.
	callConnections    = 4
	quorumConnections  = 1
	renewalConnections = 2

	// followTime is how long a connection that Sentinel chose is used before the next one asks
	// Sentinel again. A master that was replaced may go on to answer us.
	followTime = 3 * time.Second

	// longestConnect bounds a handshake if the client has no DialTimeout.
	longestConnect = 30 * time.Second
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
	listens  *handshakes                  // also makes the connections for calls
	remote   atomic.Pointer[string]       // where the last connection went
	sub      atomic.Pointer[clientPubSub] // the last one
}

func newClientConn(client *redis.Client, l *latency, r *replicas, most int) *clientConn {
	c := &clientConn{options: ownOptions(client.Options())}
	c.calls, c.listens = c.newConnections(l, r, most)
	c.renewals, _ = c.newConnections(l, r, renewalConnections)
	return c
}

func (c *clientConn) newConnections(l *latency, r *replicas, most int) (*connections, *handshakes) {
	h := newHandshakes(c.options)
	made := newConnections(func(ctx context.Context) (*connection, error) { return c.open(ctx, h) }, l, most)
	made.replicas, made.limiter, made.idleLimit, made.closing = r, c.options.Limiter, c.options.ConnMaxIdleTime, h.close
	return made, h
}

// ownOptions returns those of a client's options that its server and its network need.
func ownOptions(o *redis.Options) redis.Options {
	return redis.Options{
		Network: o.Network, Addr: o.Addr, NodeAddress: o.NodeAddress, DB: o.DB, ClientName: o.ClientName, TLSConfig: o.TLSConfig,
		Username: o.Username, Password: o.Password, CredentialsProvider: o.CredentialsProvider,
		CredentialsProviderContext: o.CredentialsProviderContext, StreamingCredentialsProvider: o.StreamingCredentialsProvider,
		Dialer: o.Dialer, OnConnect: o.OnConnect, DialTimeout: o.DialTimeout, Limiter: o.Limiter,
		ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime, ConnMaxLifetimeJitter: o.ConnMaxLifetimeJitter,

		// One connection for each client, so that its Dialer is called for that connection only.
		PoolSize: 1, PipelinePoolSize: -1,
		DialerRetries: 1, MaxRetries: -1, // tries are counted by node
		// The context alone bounds a call.
		ContextTimeoutEnabled: true, ReadTimeout: -1, WriteTimeout: -1,
		Protocol: 2, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DisableIdentity: true, // it would be one more round trip
	}
}

// open makes a connection.
func (c *clientConn) open(ctx context.Context, h *handshakes) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, c.connectTimeout())
	defer cancel()
	wire, err := h.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	// The connection of a Dialer may have no address.
	if addr := wire.RemoteAddr(); addr != nil {
		c.leads(addr.String())
	}
	cn := newConnection(wire)
	if life := c.life(); life > 0 {
		cn.end = time.Now().Add(life)
	}
	return cn, nil
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
	return errors.Join(c.calls.close(), c.renewals.close())
}

// listen opens a pub/sub connection.
func (c *clientConn) listen(ctx context.Context, heard func(driver.Event)) (driver.PubSub, error) {
	ctx, cancel := context.WithTimeout(ctx, c.connectTimeout())
	defer cancel()
	wire, ctx, err := c.listens.dial(ctx)
	if err != nil {
		return nil, err
	}
	sub := &clientPubSub{PubSub: c.listens.client.Subscribe(context.Background()), wire: wire}
	if err := sub.Ping(ctx); err != nil && !isServerReply(err) {
		sub.Close()
		return nil, err
	}
	c.sub.Store(sub)
	go sub.receive(heard)
	return sub, nil
}

// clientPubSub is a pub/sub connection of its own.
type clientPubSub struct {
	*redis.PubSub
	wire *lent // its only connection
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
	_ = s.wire.Close()
	_ = s.PubSub.Close()
}

package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
)

// handshakeBuffer is what go-redis has for each direction. The backend has buffers of its own.
const handshakeBuffer = 4 << 10

var errNoHandshake = errors.New("redisbackend: go-redis made no handshake on this connection")

// handshakes are made by go-redis, over connections that the backend dials and then uses alone. One
// redis.Client makes all of them, one at a time: go-redis' metrics keep the name of each client's pool.
type handshakes struct {
	options redis.Options
	client  *redis.Client
	closed  atomic.Bool

	turn    chan struct{}        // has room for the handshake that is under way
	pending atomic.Pointer[lent] // its connection, until go-redis takes it
}

func newHandshakes(options redis.Options) *handshakes {
	h := &handshakes{options: options, turn: make(chan struct{}, 1)}
	// go-redis forgets a connection when it makes the next one.
	options.ConnMaxLifetime, options.ConnMaxLifetimeJitter = 1, 0
	options.ReadBufferSize, options.WriteBufferSize = handshakeBuffer, handshakeBuffer
	options.Dialer, options.Limiter = h.lend, nil // the backend asks the Limiter itself
	onConnect := options.OnConnect
	options.OnConnect = func(ctx context.Context, cn *redis.Conn) error {
		err := recovered("OnConnect", func() error {
			if onConnect == nil {
				return nil
			}
			return onConnect(ctx, cn)
		})
		if wire, ok := ctx.Value(lentKey{}).(*lent); ok && err == nil {
			wire.initialized = true
		}
		return err
	}
	careful(&options)
	h.client = redis.NewClient(&options)
	return h
}

// lent is a connection that go-redis uses for the handshake. After that go-redis can neither write
// nor read nor close it: a command of its own would shift the answers to ours.
type lent struct {
	net.Conn
	over        atomic.Bool
	taken       atomic.Bool
	initialized bool // the handshake was done, including the application's OnConnect
}

// lentKey is where a context has its connection.
type lentKey struct{}

func (l *lent) Read(b []byte) (int, error) {
	if l.over.Load() {
		return 0, net.ErrClosed
	}
	return l.Conn.Read(b)
}

func (l *lent) Write(b []byte) (int, error) {
	if l.over.Load() {
		return 0, net.ErrClosed
	}
	return l.Conn.Write(b)
}

func (l *lent) Close() error {
	if l.over.Load() {
		return nil
	}
	return l.Conn.Close()
}

// lend gives go-redis the connection of a handshake. A subscription has it in its context. Other
// connections are dialed under a context of go-redis, perhaps when the handshake was given up already.
// A connection that nobody wants is a closed one: after errors, go-redis would refuse to dial.
func (h *handshakes) lend(ctx context.Context, _, _ string) (net.Conn, error) {
	wire, ok := ctx.Value(lentKey{}).(*lent)
	if !ok {
		wire = h.pending.Swap(nil)
	}
	if wire == nil || wire.taken.Swap(true) {
		closed, _ := net.Pipe()
		_ = closed.Close()
		return closed, nil
	}
	return wire, nil
}

// dial makes a connection, and a context for its handshake.
func (h *handshakes) dial(ctx context.Context) (*lent, context.Context, error) {
	wire := new(lent)
	err := recovered("Dialer", func() (err error) {
		wire.Conn, err = h.options.Dialer(ctx, h.options.Network, h.options.Addr)
		return err
	})
	return wire, context.WithValue(ctx, lentKey{}, wire), err
}

// connect makes a connection: it dials, authenticates and asks for a first answer.
func (h *handshakes) connect(ctx context.Context) (net.Conn, error) {
	if h.closed.Load() { // a late release
		late := newHandshakes(h.options)
		defer late.client.Close()
		return late.connect(ctx)
	}
	wire, ctx, err := h.dial(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		_ = wire.Close()
		return nil, ctx.Err()
	}
	h.pending.Store(wire)
	// A server that forbids PING answers, too. If SELECT or OnConnect fails, PING returns that error:
	// the connection may then be in database 0.
	// A redis.Conn would panic here if there is a StreamingCredentialsProvider.
	err = h.client.Ping(ctx).Err()
	h.pending.Store(nil)
	if err == nil && !wire.initialized {
		err = errNoHandshake
	}
	if err != nil && (!wire.initialized || !isServerReply(err) || hasCode(err, "NOAUTH", "WRONGPASS")) {
		_ = wire.Close()
		return nil, err
	}
	wire.over.Store(true)
	return wire.Conn, nil
}

func (h *handshakes) close() {
	h.closed.Store(true)
	_ = h.client.Close()
}

// recovered makes an error of a panic in a function of the application. It runs on a goroutine of the
// backend, where nobody else could recover.
func recovered(what string, call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redisbackend: %s of the Redis client panicked: %v", what, p)
		}
	}()
	return call()
}

// careful makes errors of panics in the credentials' functions.
func careful(o *redis.Options) {
	if from := o.CredentialsProvider; from != nil && o.CredentialsProviderContext == nil {
		o.CredentialsProviderContext = func(context.Context) (user, password string, err error) {
			err = recovered("CredentialsProvider", func() error { user, password = from(); return nil })
			return user, password, err
		}
	} else if from := o.CredentialsProviderContext; from != nil {
		o.CredentialsProviderContext = func(ctx context.Context) (user, password string, err error) {
			err = recovered("CredentialsProviderContext", func() (err error) { user, password, err = from(ctx); return err })
			return user, password, err
		}
	}
	if from := o.StreamingCredentialsProvider; from != nil {
		o.StreamingCredentialsProvider = current{from}
	}
}

// current passes on the current credentials of a provider, and no later ones. With later ones,
// go-redis would send AUTH on a connection that the backend uses, and read the answer to another
// command.
type current struct {
	auth.StreamingCredentialsProvider
}

func (p current) Subscribe(auth.CredentialsListener) (got auth.Credentials, end auth.UnsubscribeFunc, err error) {
	err = recovered("StreamingCredentialsProvider", func() (err error) {
		got, end, err = p.StreamingCredentialsProvider.Subscribe(new(deaf))
		return err
	})
	return got, end, err
}

// deaf has a size, because a provider tells its listeners apart by their addresses.
type deaf struct{ _ byte }

func (*deaf) OnNext(auth.Credentials) {}
func (*deaf) OnError(error)           {}

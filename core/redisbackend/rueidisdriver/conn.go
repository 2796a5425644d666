package rueidisdriver

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// followTime is how long a master that Sentinel named is used before Sentinel's answer is looked at
// again. A master that was replaced may go on to answer.
const followTime = time.Second

// conn reaches one Redis over connections of its own, which rueidis calls dedicated. Calls that are
// given up may still be under way on a connection, so nobody else may use it.
type conn struct {
	address  func() string
	dedicate func() (rueidis.DedicatedClient, func(), error)
	follow   bool // the address may change

	// Rueidis writes to a connection and reads from it in the caller's goroutine, until two calls meet
	// there. From then on two goroutines do that, which doubles the CPU time of a caller that is
	// alone. Such a caller uses lone.
	lone     line
	busy     atomic.Bool // lone is in use
	calls    line
	renewals line
}

// newConn returns a conn of a client of one Redis, or of Sentinel.
func newConn(client rueidis.Client) *conn {
	return openConn(client.Mode() == rueidis.ClientModeSentinel,
		func() string { return strings.Join(slices.Sorted(maps.Keys(client.Nodes())), ",") },
		func() (rueidis.DedicatedClient, func(), error) {
			c, release := client.Dedicate()
			return c, release, nil
		})
}

func openConn(follow bool, address func() string, dedicate func() (rueidis.DedicatedClient, func(), error)) *conn {
	c := &conn{follow: follow, address: address, dedicate: dedicate}
	c.lone.open, c.calls.open, c.renewals.open = c.open, c.open, c.open
	return c
}

func (c *conn) node() driver.Node { return driver.Node{Conn: c, Listen: c.listen} }

func (c *conn) Address() string { return c.address() }

// Do implements driver.Conn.
func (c *conn) Do(ctx context.Context, commands ...*driver.Command) (<-chan struct{}, error) {
	switch {
	case commands[0].Renewal:
		return c.renewals.do(ctx, commands)
	case c.calls.isIdle() && c.busy.CompareAndSwap(false, true):
		defer c.busy.Store(false)
		return c.lone.do(ctx, commands)
	default:
		return c.calls.do(ctx, commands)
	}
}

func (c *conn) Close() error {
	c.lone.close()
	c.calls.close()
	c.renewals.close()
	return nil
}

// open makes a connection. It takes as long as the client's options allow.
func (c *conn) open() (*wire, error) {
	w := &wire{places: make(chan struct{}, mostInFlight)}
	if c.follow {
		w.address, w.moved = c.address(), c.address
		w.until.Store(time.Now().Add(followTime).UnixNano())
	}
	var err error
	if w.client, w.release, err = c.dedicate(); err != nil {
		return nil, err
	}
	// An error of dialing comes with the first command.
	if err := w.ping(context.Background()); err != nil {
		w.close()
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	w.made = time.Now()
	return w, nil
}

// listen implements driver.Node.
func (c *conn) listen(ctx context.Context, heard func(driver.Event)) (driver.PubSub, error) {
	w, err := c.open()
	if err != nil {
		return nil, err
	}
	return newPubSub(w, heard), nil
}

// build makes a command for rueidis.
func build(b rueidis.Builder, c *driver.Command) rueidis.Completed {
	return b.Arbitrary(c.All()...).Build()
}

// take sets the reply or the error of a command. The error is the connection's, or nil.
func take(c *driver.Command, r rueidis.RedisResult) error {
	if err := r.NonRedisError(); err != nil {
		c.Value, c.Err = nil, err
		return err
	}
	m, _ := r.ToMessage()
	c.Value, c.Err = value(&m), nil
	if e, refused := c.Value.(driver.ReplyError); refused {
		c.Value, c.Err = nil, e
	}
	return nil
}

// value returns a reply as RESP2 has it.
func value(m *rueidis.RedisMessage) any {
	switch {
	case m.IsNil():
		return nil
	case m.IsInt64():
		n, _ := m.AsInt64()
		return n
	case m.IsArray():
		all, _ := m.ToArray()
		values := make([]any, len(all))
		for i := range all {
			values[i] = value(&all[i])
		}
		return values
	}
	if err := m.Error(); err != nil {
		return replyError(err)
	}
	if text, err := m.ToString(); err == nil {
		return text
	}
	other, _ := m.ToAny() // a map, which we never ask for
	return other
}

// replyError returns an error that Redis answered. Rueidis leaves the code ERR out.
func replyError(err error) driver.ReplyError {
	text := err.Error()
	if code, _, _ := strings.Cut(text, " "); code == "" || strings.ToUpper(code) != code {
		text = "ERR " + text
	}
	return driver.ReplyError(text)
}

// broken says that a connection ended under a call. The cause may be the end of another call's
// context.
func broken(cause error) error { return fmt.Errorf("%w: %v", net.ErrClosed, cause) }

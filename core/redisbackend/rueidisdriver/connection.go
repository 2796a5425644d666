package rueidisdriver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// pingWait is how long a new connection has for its first answer.
const pingWait = 5 * time.Second

// dedicated is a connection that rueidis keeps for one user.
type dedicated struct {
	client  rueidis.DedicatedClient
	release func()
}

// dedicate makes a connection. It takes as long as the client's options allow. An error of dialing
// comes with the first command. Any answer to that will do, also an error of the ACL.
func (n *node) dedicate() (*dedicated, error) {
	client, err := n.client()
	if err != nil {
		return nil, err
	}
	d := new(dedicated)
	d.client, d.release = client.Dedicate()
	ctx, cancel := context.WithTimeout(context.Background(), pingWait)
	defer cancel()
	if err := d.client.Do(ctx, d.client.B().Ping().Build()).NonRedisError(); err != nil {
		d.close()
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	return d, nil
}

// close ends the connection: after the calls under way, but within about a second.
func (d *dedicated) close() {
	d.client.Close()
	d.release()
}

// connection is a dedicated connection of the client. One goroutine at a time uses it: rueidis then
// writes and reads in that goroutine.
type connection struct {
	node    *node
	ready   *dedicated
	pending chan made // of a connect that was given up, or nil
	built   []rueidis.Completed
}

type made struct {
	dedicated *dedicated
	err       error
}

// Connect implements driver.Connection. Rueidis may not end a dial with ctx.
func (c *connection) Connect(ctx context.Context) error {
	if c.pending == nil {
		c.pending = make(chan made, 1)
		go func(pending chan<- made) {
			d, err := c.node.dedicate()
			pending <- made{d, err}
		}(c.pending)
	}
	select {
	case m := <-c.pending:
		c.ready, c.pending = m.dedicated, nil
		return m.err
	case <-ctx.Done():
		return fmt.Errorf("cannot connect: %w", ctx.Err())
	}
}

// Disconnect implements driver.Connection. A connection that is still being made is for the next
// Connect.
func (c *connection) Disconnect() {
	if c.ready != nil {
		go c.ready.close()
	}
	c.ready, c.built = nil, nil
}

// Close implements driver.Connection.
func (c *connection) Close() {
	c.Disconnect()
	if pending := c.pending; pending != nil {
		go func() {
			if m := <-pending; m.err == nil {
				m.dedicated.close()
			}
		}()
	}
}

// Exec implements driver.Connection. Rueidis hides the bytes that come, so a large reply has no more
// time than another.
func (c *connection) Exec(commands []*driver.Command, end, callers time.Time) error {
	if !callers.IsZero() && callers.Before(end) {
		end = callers
	}
	ctx := &deadline{Context: context.Background(), end: end}
	defer ctx.stop()
	b := c.ready.client.B()
	if len(commands) == 1 {
		return ended(ctx, commands, take(commands[0], c.ready.client.Do(ctx, build(b, commands[0]))))
	}
	c.built = c.built[:0]
	for _, cmd := range commands {
		c.built = append(c.built, build(b, cmd))
	}
	var first error
	for i, r := range c.ready.client.DoMulti(ctx, c.built...) {
		if err := take(commands[i], r); err != nil && first == nil {
			first = err
		}
	}
	return ended(ctx, commands, first)
}

// ended returns the error of a connection, and gives it to the commands that were not answered. Only
// the deadline of the call is a time-out. Rueidis also ends connections that it found silent.
func ended(ctx *deadline, commands []*driver.Command, err error) error {
	if err == nil {
		return nil
	}
	timeout := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	if timeout && ctx.Err() != nil {
		err = context.DeadlineExceeded
	} else {
		err = fmt.Errorf("%w: %v", net.ErrClosed, err)
	}
	for _, c := range commands {
		if _, answered := c.Err.(driver.ReplyError); c.Err != nil && !answered {
			c.Err = err
		}
	}
	return err
}

// deadline is a context that ends at a time. Rueidis sets that time on the connection and asks for
// Done only if another goroutine reads. So most calls need no timer.
type deadline struct {
	context.Context
	end    time.Time
	cancel func() // of the timer, or nil
}

func (d *deadline) Deadline() (time.Time, bool) { return d.end, true }

func (d *deadline) Done() <-chan struct{} {
	if d.cancel == nil {
		d.Context, d.cancel = context.WithDeadline(d.Context, d.end)
	}
	return d.Context.Done()
}

func (d *deadline) Err() error {
	if time.Now().Before(d.end) {
		return nil
	}
	return context.DeadlineExceeded
}

func (d *deadline) stop() {
	if d.cancel != nil {
		d.cancel()
	}
}

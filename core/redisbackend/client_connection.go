package redisbackend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// keptCommands is how many commands of go-redis a connection keeps for its next pipeline.
const keptCommands = 64

var (
	errErrorInside   = errors.New("redisbackend: Redis answered an array with an error inside; check whether a proxy changes answers")
	errNoReply       = errors.New("redisbackend: go-redis returned no reply")
	errNotDialed     = errors.New("redisbackend: the connection has ended")
	errNoHandshake   = errors.New("redisbackend: go-redis made no handshake on this connection")
	errNilConnection = errors.New("redisbackend: the client's Dialer returned neither a connection nor an error")
	errNoConnection  = fmt.Errorf("redisbackend: the connection was closed: %w", io.EOF)
)

// clientConnection is an ordinary client of go-redis that has one connection. One goroutine at a time uses
// it. It connects in Connect only, so that no call waits for a handshake.
type clientConnection struct {
	client *redis.Client
	wire   *wire // of the last connect that succeeded, or nil

	dialing atomic.Bool
	dialed  atomic.Pointer[wire]
	ready   bool // the handshake was done, including the application's OnConnect

	pipe redis.Pipeliner
	sent []queued // the commands of the last call, empty again
}

// newClientConnection makes a client that connects by dial, within limit.
func newClientConnection(o redis.Options, dial func(context.Context) (net.Conn, error), limit time.Duration) *clientConnection {
	cn := new(clientConnection)
	o.ConnMaxIdleTime, o.ConnMaxLifetime, o.ConnMaxLifetimeJitter = -1, 0, 0 // connections replaces it
	o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
		if !cn.dialing.Load() {
			return failed(errNotDialed), nil
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		conn, err := dial(ctx)
		if err != nil {
			return failed(err), nil
		}
		w := newWire(conn)
		w.begin(time.Now().Add(limit), time.Time{}) // the handshake
		cn.dialed.Store(w)
		return w, nil
	}
	onConnect := o.OnConnect
	o.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
		if onConnect != nil {
			if err := recovered("OnConnect", func() error { return onConnect(ctx, conn) }); err != nil {
				return err
			}
		}
		cn.ready = true
		return nil
	}
	cn.client = redis.NewClient(&o)
	cn.pipe = cn.client.Pipeline()
	return cn
}

// Connect implements driver.Connection.
func (cn *clientConnection) Connect(ctx context.Context) error {
	if cn.wire != nil {
		_ = cn.wire.Close()
		_ = cn.client.Ping(ctx) // go-redis notices that
		cn.wire = nil
	}
	cn.dialing.Store(true)
	defer cn.dialing.Store(false)
	cn.ready = false
	defer cn.boundedBy(ctx)()
	if w := cn.dialed.Load(); w != nil { // it came when the last connect was given up
		if end, ok := ctx.Deadline(); ok {
			w.begin(end, time.Time{})
		}
	}
	// A server that forbids PING answers, too. If SELECT or OnConnect fails, PING returns that error:
	// the connection may then be in database 0.
	err := cn.client.Ping(ctx).Err()
	if err == nil && !cn.ready {
		err = errNoHandshake
	}
	w := cn.dialed.Swap(nil)
	if err != nil {
		err = callerEnded(ctx, err)
	}
	switch failed, undialed := errors.AsType[dialError](err); {
	case undialed:
		return fmt.Errorf("cannot connect: %w", failed.cause)
	case w == nil:
		return fmt.Errorf("cannot connect: %w", cmp.Or(err, errNoHandshake))
	case err != nil && (!cn.ready || !isServerReply(err) || hasCode(err, "NOAUTH", "WRONGPASS")):
		_ = w.Close()
		return fmt.Errorf("cannot connect: %w", err)
	}
	cn.wire = w
	return nil
}

// boundedBy ends a handshake with ctx, until the returned function is called. go-redis notices ctx only
// while it dials.
func (cn *clientConnection) boundedBy(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		if w := cn.dialed.Load(); w != nil {
			_ = w.Close()
		}
	})
}

// Disconnect implements driver.Connection. The client makes the next connection, too, because
// go-redis' metrics keep the names of each client's pools.
func (cn *clientConnection) Disconnect() {
	if cn.wire != nil {
		_ = cn.wire.Close()
	}
}

// Close implements driver.Connection.
func (cn *clientConnection) Close() { _ = cn.client.Close() }

// Exec implements driver.Connection.
func (cn *clientConnection) Exec(commands []*command, end, callers time.Time) (err error) {
	defer func() { // go-redis panics on an answer of an impossible length
		if p := recover(); p != nil {
			cn.sent = nil
			err = fail(commands, fmt.Errorf("redisbackend: go-redis panicked: %v", p))
		}
	}()
	if cn.wire.gone() {
		// Release, sent over it and then again, could not tell its own first try from a lost lock.
		return fail(commands, notSent(errNoConnection))
	}
	cn.wire.begin(end, callers)
	ctx := context.Background() // the deadlines of the wire end a call
	sent := cn.unsent(len(commands))
	for i, c := range commands {
		sent[i].args = words(sent[i].args, c)
		_ = cn.pipe.Process(ctx, &sent[i]) // it is sent by Exec
	}
	_, err = cn.pipe.Exec(ctx)
	err = cn.settle(commands, sent, err)
	for i := range sent {
		sent[i].forget()
	}
	return err
}

// unsent returns n commands of go-redis. Up to keptCommands of them are used again and again.
func (cn *clientConnection) unsent(n int) []queued {
	if n > keptCommands {
		return make([]queued, n)
	}
	if n > len(cn.sent) {
		cn.sent = make([]queued, n)
	}
	return cn.sent[:n]
}

// queued is a command of a pipeline. It keeps what Redis answered from go-redis, which would close the
// connection after a READONLY. And at the end of a connection, go-redis would give its error to the
// commands that were answered before.
type queued struct {
	redis.Cmd // the answer
	args      []any
	answered  bool
	refusal   error // of Redis
}

// Args implements redis.Cmder.
func (q *queued) Args() []any { return q.args }

// SetErr implements redis.Cmder.
func (q *queued) SetErr(err error) {
	switch {
	case q.answered:
	case err == nil || isReply(err):
		q.answered, q.refusal = true, err
	default:
		q.Cmd.SetErr(err)
	}
}

// forget makes q ready for the next command.
func (q *queued) forget() {
	clear(q.args)
	*q = queued{args: q.args[:0]}
}

// settle takes the replies. err is that of the pipeline.
func (cn *clientConnection) settle(commands []*command, sent []queued, err error) error {
	if err != nil && !cn.wire.wrote {
		return fail(commands, notSent(fmt.Errorf("%w: %w", errNoConnection, err)))
	}
	var broken error
	for i, c := range commands {
		if broken != nil { // what follows may belong to something else
			c.Value, c.Err = nil, broken
			continue
		}
		c.Value, c.Err = sent[i].Val(), cmp.Or(sent[i].refusal, sent[i].Err())
		switch {
		case errors.Is(c.Err, redis.Nil):
			c.Value, c.Err = nil, nil
		case c.Value != nil && isReply(c.Err):
			c.Value, c.Err = nil, errErrorInside // go-redis leaves the rest of the array unread
		case c.Err != nil:
			c.Value = nil // a part, perhaps
		case c.Value == nil || !sent[i].answered:
			// redis.Nil is a reply: a SET that was granted has it. This is none.
			c.Value, c.Err = nil, cmp.Or(err, errNoReply)
		}
		if !isIntact(c.Err) {
			broken = c.Err
		}
	}
	return broken
}

// fail sets the error of all commands.
func fail(commands []*command, err error) error {
	for _, c := range commands {
		c.Value, c.Err = nil, err
	}
	return err
}

// words appends a command to args, as go-redis wants it. A pointer to a text needs no allocation.
func words(args []any, c *command) []any {
	switch {
	case c.Script == nil:
		return appendTexts(args, c.Words)
	case c.Source:
		args = append(args, "eval", &c.Script.Src)
	default:
		args = append(args, "evalsha", &c.Script.Hash)
	}
	return appendTexts(appendTexts(append(args, len(c.Keys)), c.Keys), c.Args)
}

func appendTexts(args []any, texts []string) []any {
	for i := range texts {
		args = append(args, &texts[i])
	}
	return args
}

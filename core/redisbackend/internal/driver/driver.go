// Package driver is what redisbackend needs of a Redis client library.
package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
)

// Driver is a client library with its clients: one node, the nodes of a quorum, or a cluster.
type Driver struct {
	Nodes   []func() Node // each backend has nodes of its own
	Cluster Cluster
	Err     error // why the clients cannot be used
}

// Node is one Redis, or the master that Sentinel names. Only Address, Open and Listen must be set.
type Node struct {
	// Address names the Redis in errors and logs.
	Address func() string
	// Open makes a connection, which is not connected yet.
	Open func() Connection
	// Listen opens a pub/sub connection and passes on what comes: one event after the other, until
	// one has an error. A connection that was opened has such an event in the end.
	Listen func(ctx context.Context, heard func(Event)) (PubSub, error)
	// Close frees what is neither a Connection nor a PubSub. It may be called more than once.
	Close func()

	// Follows says that Open may lead to another server later. Connections are replaced often.
	Follows bool
	// ConnectLimit bounds Connect. With 0 it is 30 s.
	ConnectLimit time.Duration
	// Life returns how long a new connection is used, or 0 for no limit.
	Life func() time.Duration
	// IdleLimit is after how long without a call a connection is replaced.
	IdleLimit time.Duration
	Limiter   Limiter
}

// Connection is one connection to Redis. One goroutine at a time uses it.
type Connection interface {
	// Connect dials, authenticates, and waits for a first answer. That may be an error of the ACL.
	// Connect ends with ctx. After Disconnect it makes a new connection.
	Connect(ctx context.Context) error
	// Exec sends commands together and sets the reply or the error of each. It ends at the time
	// end. While a large reply comes, it may go on, but never after the deadline of the callers; a
	// zero deadline is none. The result is the connection's error. The connection is not used again
	// then. If the error matches ErrNotSent, the commands have no effect.
	Exec(commands []*Command, end, callers time.Time) error
	// Disconnect ends the connection, and does not wait for that.
	Disconnect()
	// Close is the last call.
	Close()
}

// Limiter is the application's. Allow is asked before each pipeline.
type Limiter interface {
	Allow() error
	ReportResult(err error)
}

// Conn sends commands to one Redis, for many callers at once.
type Conn interface {
	// Do sends one command, or two together, sets the reply or the error of each, and returns the
	// error of the first. It returns soon after the deadline of ctx; a cancellation may take that
	// long, too. If a call is still under way then, late is closed once it has had its effect or
	// never will. Until then it may write to the commands. An error that matches ErrNotSent says
	// that it has none.
	Do(ctx context.Context, commands ...*Command) (late <-chan struct{}, err error)
	// Address names the Redis in errors and logs.
	Address() string
	Close() error
}

// Cluster is a Redis Cluster.
type Cluster interface {
	// Master returns the address of the master that has a key.
	Master(ctx context.Context, key string) (address string, err error)
	// Masters returns the addresses of all masters.
	Masters(ctx context.Context) ([]string, error)
	// Node returns the Redis at an address that Master or Masters returned.
	Node(address string) Node
	// Reload forgets which master has which key.
	Reload(ctx context.Context)
	// Asking reaches the master that a slot is moving to.
	Asking() Conn
}

// PubSub is a pub/sub connection. Its methods are called one at a time, and for one sharded channel
// at a time.
type PubSub interface {
	Subscribe(ctx context.Context, sharded bool, channels ...string) error
	Unsubscribe(ctx context.Context, sharded bool, channels ...string) error
	// Ping makes the server send something.
	Ping(ctx context.Context) error
	// Close ends the connection. The last event comes all the same.
	Close()
}

// Event is what comes over a pub/sub connection.
type Event struct {
	// Kind is the server's word: message, subscribe, unsubscribe, the same with an s before them, or
	// another one for a sign of life.
	Kind    string
	Channel string
	Payload string
	// Err says that the connection has ended. No event follows.
	Err error
}

// Script is a Lua script. Its first KEYS is the lock's key.
type Script = redsyncredis.Script

// Command is one command with its reply: a script, or plain words.
type Command struct {
	Words []string

	Script  *Script
	Source  bool // send the script itself: Redis does not know it
	Renewal bool // never wait behind other calls
	Confirm bool // replicas must confirm what it writes, if the configuration says so
	Keys    []string
	Args    []string

	Value any // string, int64, []any or nil
	Err   error
}

// Plain makes a command of words. The second one is the key, if there is one.
func Plain(words ...string) *Command { return &Command{Words: words} }

// FromReplica reports whether a replica refused one of the commands. After a fail-over, the name of
// the server may lead to another one, while the old master keeps its connections. So the connection
// must not be used again. Redis 6 puts text around READONLY. Until a replica has its master's data,
// scripts get MASTERDOWN or LOADING instead.
func FromReplica(commands []*Command) bool {
	return slices.ContainsFunc(commands, func(c *Command) bool {
		if c.Err == nil {
			return false
		}
		text := c.Err.Error()
		return strings.Contains(text, "READONLY ") || strings.HasPrefix(text, "MASTERDOWN ") || strings.HasPrefix(text, "LOADING ")
	})
}

// Size returns about how many bytes a command sends.
func (c *Command) Size() (size int) {
	for _, a := range c.Args {
		size += len(a)
	}
	return size
}

// All returns the words of a command, also of a script.
func (c *Command) All() []string {
	if c.Script == nil {
		return c.Words
	}
	all := make([]string, 0, 3+len(c.Keys)+len(c.Args))
	if c.Source {
		all = append(all, "eval", c.Script.Src)
	} else {
		all = append(all, "evalsha", c.Script.Hash)
	}
	return append(append(append(all, strconv.Itoa(len(c.Keys))), c.Keys...), c.Args...)
}

// ReplyError is an error that Redis answered.
type ReplyError string

// Error returns the text as Redis sent it.
func (e ReplyError) Error() string { return string(e) }

// RedisError makes it one of go-redis's errors of a server.
func (e ReplyError) RedisError() {}

// ErrNotSent says that a call had no effect, because it was not sent.
var ErrNotSent = errors.New("redisbackend: the call was given up before it was sent")

// NotSent adds ErrNotSent to the reason.
func NotSent(cause error) error { return fmt.Errorf("%w: %w", ErrNotSent, cause) }

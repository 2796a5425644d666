package core

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	sameOwnerTries = 3  // of one call, when its connection broke
	maxStuck       = 64 // calls of one node that were given up and have not returned
	renewalConns   = 4

	movingPause = 20 * time.Millisecond // between tries while a slot moves
)

// node is one Redis master. eval returns soon after ctx ends, with late set if the call is then still under way, and
// retried if the client has sent it more than once by itself.
type node interface {
	eval(ctx context.Context, s *script, keys []string, args []any) (v any, late <-chan struct{}, retried bool, err error)
	close() error
}

// call runs a script, again with the same arguments when the connection broke: the scripts know their own work.
func (b *redisBackend) call(ctx context.Context, key string, s *script, keys []string, args ...any) (r reply, err error) {
	if b.err != nil {
		return r, b.err
	}
	caller := ctx
	if b.breaker != nil {
		defer func() { b.breaker.note(err, ended(caller)) }()
	}
	ctx, cancel := b.timeouts.limit(ctx, b.timeout)
	defer cancel()
	for try := 1; ; try++ {
		r.sent = time.Now()
		var v any
		var retried bool
		v, r.late, retried, err = b.node.eval(ctx, s, keys, args)
		r.retried = r.retried || retried
		if err == nil {
			if err = r.decode(v); err != nil {
				return r, b.unavailable(key, err)
			}
			return r, nil
		}
		if moving(err) {
			select {
			case <-time.After(b.jitter(movingPause)):
				try--
				continue
			case <-ctx.Done():
			}
		}
		if foreign(err) {
			return r, fmt.Errorf("%w %q: Redis holds a value of another type there: %w", ErrInvalidKey, key, err)
		}
		switch over := ended(caller); {
		case over != nil && !errors.Is(err, over):
			err = fmt.Errorf("%w: %w", over, err)
		case over == nil && ended(ctx) != nil:
			err = fmt.Errorf("core: no answer within %v: %w", b.timeout, err)
		}
		if try == sameOwnerTries || ctx.Err() != nil || !broken(err) {
			return r, b.unavailable(key, err)
		}
		r.retried = true
	}
}

func (b *redisBackend) unavailable(key string, cause error) error {
	return &UnavailableError{Key: key, Nodes: []error{cause}}
}

// moving says that a slot of a Redis Cluster is on its way to another master, and that the script has not run.
func moving(err error) bool {
	return redis.HasErrorPrefix(err, "TRYAGAIN") || redis.HasErrorPrefix(err, "ASK") || redis.HasErrorPrefix(err, "MOVED")
}

// broken says that a connection ended under a call: the next try has a new one.
func broken(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &op) && !op.Timeout() && op.Op != "dial"
}

// clientNode is a go-redis client.
type clientNode struct {
	client redis.UniversalClient
	direct redis.UniversalClient // honours a context's deadline by itself; nil where none does
	sender runner                // on direct
	stuck  atomic.Int64

	extends  *batches // of the direct client: many leases are renewed in one round trip
	together together

	mu       sync.Mutex
	renewals *redis.Client // made when it is first needed
	closed   bool
}

func newClientNode(c redis.UniversalClient) *clientNode {
	n := &clientNode{client: c}
	if single, ok := c.(*redis.Client); ok {
		// By default a go-redis client ignores the context once the command is on the wire. A copy shares its
		// connections, and may have other options.
		clone := single.WithTimeout(single.Options().ReadTimeout)
		clone.Options().ContextTimeoutEnabled = true
		clone.Options().MaxRetries = 0 // the tries are counted above, where a lost reply matters
		n.direct, n.sender = clone, direct{clone}
		n.extends = &batches{client: n.forRenewals, together: &n.together}
	}
	return n
}

func (n *clientNode) eval(ctx context.Context, s *script, keys []string, args []any) (any, <-chan struct{}, bool, error) {
	if n.direct == nil {
		v, late, err := giveUp(ctx, &n.stuck, func() (any, error) { return run(ctx, once{n.client}, s, keys, args) })
		return v, late, false, err
	}
	if s == extendScript {
		v, late, err := n.extends.eval(ctx, s, keys, args)
		return v, late, false, err
	}
	v, err := run(ctx, n.sender, s, keys, args)
	return v, nil, false, err
}

// forRenewals returns a client with connections of its own.
func (n *clientNode) forRenewals() redis.UniversalClient {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return n.direct
	}
	if n.renewals == nil {
		o := *n.direct.(*redis.Client).Options()
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = renewalConns, 0, renewalConns, 0
		o.PushNotificationProcessor = nil // the application's client has taken that one
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		n.renewals = redis.NewClient(&o)
	}
	return n.renewals
}

func (n *clientNode) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.renewals == nil {
		return nil
	}
	r := n.renewals
	n.renewals = nil
	return r.Close()
}

// runner sends one EVAL or EVALSHA.
type runner interface {
	send(ctx context.Context, verb, script string, keys []string, args []any) (any, error)
}

func run(ctx context.Context, c runner, s *script, keys []string, args []any) (any, error) {
	v, err := c.send(ctx, "evalsha", s.Hash, keys, args)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		v, err = c.send(ctx, "eval", s.Src, keys, args)
	}
	return v, err
}

// direct is a client that does not retry by itself.
type direct struct{ redis.UniversalClient }

func (c direct) send(ctx context.Context, verb, script string, keys []string, args []any) (any, error) {
	if verb == "eval" {
		return c.Eval(ctx, script, keys, args...).Result()
	}
	return c.EvalSha(ctx, script, keys, args...).Result()
}

// once is a client that would retry by itself, and does not: the tries are counted above, where a lost reply matters. A Redis Cluster's
// redirects, after which a command certainly had no effect, it still follows.
type once struct{ redis.UniversalClient }

type onceCmd struct{ *redis.Cmd }

func (onceCmd) NoRetry() bool { return true }

func (c once) send(ctx context.Context, verb, script string, keys []string, args []any) (any, error) {
	all := append(make([]any, 0, 3+len(keys)+len(args)), verb, script, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	cmd := onceCmd{redis.NewCmd(ctx, append(all, args...)...)}
	_ = c.Process(ctx, cmd) // cmd has the error
	return cmd.Result()
}

// poolNode is a redsync pool.
type poolNode struct {
	pool  redsyncredis.Pool
	stuck atomic.Int64
}

func (n *poolNode) eval(ctx context.Context, s *script, keys []string, args []any) (any, <-chan struct{}, bool, error) {
	v, late, err := giveUp(ctx, &n.stuck, func() (v any, err error) {
		c, err := n.pool.Get(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		all := make([]any, 0, len(keys)+len(args))
		for _, k := range keys {
			all = append(all, k)
		}
		return c.Eval(s.Script, append(all, args...)...)
	})
	return v, late, false, err
}

func (n *poolNode) close() error { return nil }

var errStuck = errors.New("core: too many earlier calls to this node have not returned")

// giveUp runs a call that may ignore ctx, and returns without it when ctx ends.
func giveUp(ctx context.Context, stuck *atomic.Int64, call func() (any, error)) (any, <-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err // a quick answer could be there before the end is seen
	}
	if stuck.Load() >= maxStuck {
		return nil, nil, errStuck
	}
	type result struct {
		v   any
		err error
	}
	results, returned := make(chan result, 1), make(chan struct{})
	go func() {
		v, err := call()
		results <- result{v, err}
		close(returned)
	}()
	select {
	case r := <-results:
		return r.v, nil, r.err
	case <-ctx.Done():
		stuck.Add(1)
		go func() {
			<-returned
			stuck.Add(-1)
		}()
		return nil, returned, ctx.Err() // not its cause, which may be an error of this package about another key
	}
}

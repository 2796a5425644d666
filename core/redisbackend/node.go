package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend/internal/driver"
	"github.com/onelane/onelane/internal/cleanup"
)

const (
	// sameOwnerTries is how often a call is sent if its connection broke. The scripts know their own
	// earlier work by the owner.
	sameOwnerTries = 3
	// movingPause is the time between tries while a slot of a Redis Cluster moves.
	movingPause = 20 * time.Millisecond
)

// node is one Redis: it bounds calls, retries them on a broken connection and cleans up after them.
type node struct {
	conn       driver.Conn
	confirming driver.Conn // with Config.Replicas: for commands that replicas must confirm
	selfTimed  bool        // conn bounds its calls by latency itself
	latency    *latency
	logger     *slog.Logger
	jitter     func(time.Duration) time.Duration
	done       context.Context
	stop       context.CancelFunc

	// router finds the node of a key: the node itself, or the Redis Cluster that it belongs to.
	router   router
	cleaning *cleanup.Queue
	health   *health // nil unless it is a node of a quorum
	skew     skew
	stuck    *atomic.Int64 // calls given up that have not returned; nil if every call ends
	// unanswered counts the calls that failed and that no caller's context ended.
	unanswered atomic.Int64
	wakes      *wakes // nil if waiters poll
	sharded    bool   // its pub/sub
	id         string // of this backend, in the messages that it publishes
	features   features

	// freeing makes the command that frees key in the name of owner. A quorum has a script of its own.
	freeing func(key, owner string) *command
}

// router finds the node that has a key.
type router interface {
	route(ctx context.Context, key string) (*node, error)
	// redirected follows the answer MOVED, ASK or TRYAGAIN. The call is sent again, to asked if it
	// is not nil.
	redirected(ctx context.Context, err error) (asked driver.Conn)
	ping(ctx context.Context) error
	close() error
}

// newNode returns a node whose calls take as long as l allows.
func newNode(c driver.Conn, l *latency, env core.Environment) *node {
	n := &node{conn: c, latency: l, logger: env.Logger, jitter: jitter}
	n.done, n.stop = context.WithCancel(context.Background())
	n.router = n
	n.cleaning = newCleaning(n)
	n.freeing = func(key, owner string) *command {
		return scriptCommand(releaseScript, []string{key}, owner, n.channel(key), "", waiting(key), "")
	}
	return n
}

// listen makes waiters wake up by pub/sub, for a client library that can listen.
func (n *node) listen(connect connect, id string, sharded bool) {
	n.id, n.sharded = id, sharded
	n.wakes = newWakes(connect, id, sharded)
	n.warnOfEviction()
}

func (n *node) route(context.Context, string) (*node, error) { return n, nil }

func (n *node) redirected(ctx context.Context, err error) driver.Conn {
	pause(ctx, n.jitter(movingPause))
	return nil
}

// call runs a script on the node. The error is ErrInvalidKey for a key of another type, else
// *core.UnavailableError.
func (n *node) call(ctx context.Context, key string, s *script, keys []string, args ...string) (reply, error) {
	r, _, err := send(ctx, n, key, scriptCommand(s, keys, args...))
	return r, err
}

// send sends a script or plain commands to the node that has key. It sends again if a connection
// broke or the slot of the key moved.
func send(ctx context.Context, to router, key string, commands ...*command) (r reply, n *node, err error) {
	var asked driver.Conn
	end := time.Time{}
	for try := 1; ; {
		r.sent = time.Now()
		found, err := to.route(ctx, key)
		if err != nil {
			return r, n, &core.UnavailableError{Key: key, Nodes: []error{callerEnded(ctx, err)}}
		}
		if n = found; end.IsZero() {
			end = r.sent.Add(n.latency.timeout())
		}
		late, err := n.once(ctx, asked, r.sent, commands)
		asked, r.late = nil, late
		r.unconfirmed, err = splitUnconfirmed(err)
		if err == nil {
			return r, n, n.decode(key, commands[0], &r)
		}
		if isWrongType(err) {
			return r, n, fmt.Errorf("%w %q: Redis holds a value of another type: %w", core.ErrInvalidKey, key, err)
		}
		over := contextError(ctx) != nil || !time.Now().Before(end)
		switch {
		case isMoving(err) && !over:
			asked = to.redirected(ctx, err)
			continue
		case isBroken(err) && !over && try < sameOwnerTries:
			try++
			r.retried = r.retried || !neverRan(err)
			continue
		}
		if contextError(ctx) == nil && !isServerReply(err) {
			n.unanswered.Add(1)
		}
		return r, n, n.unavailable(key, callerEnded(ctx, err))
	}
}

// once sends commands once, at sent, within the node's time-out.
func (n *node) once(ctx context.Context, asked driver.Conn, sent time.Time, commands []*command) (late <-chan struct{}, err error) {
	c, confirm := n.conn, n.confirming != nil && commands[0].Confirm
	switch {
	case asked != nil:
		c = asked
	case confirm:
		c = n.confirming
	}
	if asked == nil && n.selfTimed {
		return do(ctx, c, commands)
	}
	limit := n.latency.timeout()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	late, err = do(limited, c, commands)
	switch {
	case err == nil && confirm:
		err = &unconfirmedError{cause: errSlotMoves}
	case err == nil:
		if n.latency.fixed == 0 {
			n.latency.answered(time.Since(sent))
		}
	case contextError(ctx) == nil && contextError(limited) != nil:
		n.latency.exceeded(limit)
		err = noAnswer(limit, err)
	}
	return late, err
}

// do sends commands. A script that Redis does not know is sent whole.
func do(ctx context.Context, c driver.Conn, commands []*command) (late <-chan struct{}, err error) {
	late, err = c.Do(ctx, commands...)
	if commands[0].Script != nil && hasCode(err, "NOSCRIPT") {
		commands[0].Source = true
		late, err = c.Do(ctx, commands...)
	}
	return late, err
}

// decode reads the answer of a script.
func (n *node) decode(key string, c *command, r *reply) error {
	if c.Script == nil {
		return nil
	}
	if err := r.decode(c.Value); err != nil {
		return n.unavailable(key, err)
	}
	return nil
}

// unavailable returns the error of a call that had no answer, or an answer that decides nothing.
func (n *node) unavailable(key string, cause error) error {
	return &core.UnavailableError{Key: key, Permanent: isForbidden(cause) || errors.Is(cause, errOfQuorum),
		Nodes: []error{fmt.Errorf("redis %s: %w", n.conn.Address(), cause)}}
}

// close gives clean-ups a second.
func (n *node) close() error {
	n.stop()
	n.cleaning.Close(cleanup.CloseGrace)
	if n.wakes != nil {
		n.wakes.close()
	}
	if n.confirming != nil {
		return errors.Join(n.conn.Close(), n.confirming.Close())
	}
	return n.conn.Close()
}

// closeAll closes nodes at the same time.
func closeAll(nodes []*node) error {
	errs := make([]error, len(nodes))
	var closing sync.WaitGroup
	for i, n := range nodes {
		closing.Go(func() { errs[i] = n.close() })
	}
	closing.Wait()
	return errors.Join(errs...)
}

func noAnswer(limit time.Duration, err error) error {
	return fmt.Errorf("no answer within %v: %w", limit.Round(time.Millisecond), err)
}

// callerEnded adds ctx's error to err if ctx ended.
func callerEnded(ctx context.Context, err error) error {
	if ended := contextError(ctx); ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w", ended, err)
	}
	return err
}

// isBroken reports whether a connection ended under a call. The next try has a new connection.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// contextError returns ctx's error. It also notices a deadline that passed before ctx's timer
// fired.
func contextError(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// jitter spreads d over half of it to one and a half.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

package redisbackend

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// pingScript is for connections that take scripts only.
var pingScript = newScript(0, "", "return {1, unpack(redis.call('TIME'))}\n")

// ping asks the node for an answer and for its time.
func (n *node) ping(ctx context.Context) error {
	if n.features.none {
		r, err := n.call(ctx, "", pingScript, nil)
		if err == nil {
			n.skew.seen(r.sent, r.text(1), r.text(2))
		}
		return err
	}
	now := driver.Plain("time")
	r, _, err := send(ctx, n, "", driver.Plain("ping"), now)
	n.noteTime(r, now)
	if err == nil && n.confirming != nil { // locks have connections of their own
		ping := driver.Plain("ping")
		ping.Confirm = true
		_, _, err = send(ctx, n, "", ping)
	}
	if hasCode(err, "NOPERM") && now.Err == nil {
		err = nil // PING is not needed for locks; TIME is
	}
	return err
}

// noteTime notes the node's time from a command that was answered with r, or was not.
func (n *node) noteTime(r reply, now *command) {
	if r.late != nil { // the call is under way and may still write to the command
		return
	}
	if t, ok := now.Value.([]any); ok && now.Err == nil {
		answer := reply{fields: t}
		n.skew.seen(r.sent, answer.text(0), answer.text(1))
	}
}

// Ping implements core.Backend.
func (s *server) Ping(ctx context.Context) error { return s.router.ping(ctx) }

// Ping implements core.Backend. It returns when a majority has answered, or when all nodes have had
// their time; it asks nodes that are excluded, too.
func (q *quorum) Ping(ctx context.Context) error {
	ctx, settle, end := untilSettled(ctx)
	defer settle()
	answers := make(chan error, len(q.nodes))
	var left atomic.Int64
	left.Store(int64(len(q.nodes)))
	for _, n := range q.nodes {
		go func() {
			err := n.ping(ctx)
			n.health.answered(err, contextError(ctx))
			answers <- err
			if left.Add(-1) == 0 {
				end()
			}
		}()
	}
	failed := new(core.UnavailableError)
	for answered := 0; answered < q.majority(); {
		if len(failed.Nodes)+answered == len(q.nodes) {
			return failed
		}
		if err := <-answers; err != nil {
			failed.Nodes = append(failed.Nodes, causes(err)...)
		} else {
			answered++
		}
	}
	return nil
}

// ping asks the masters of all shards. If nobody tells which these are, it asks those that are known,
// so that the error names the one that does not answer.
func (c *cluster) ping(ctx context.Context) error {
	failed := new(core.UnavailableError)
	masters, err := c.masters(ctx)
	nodes := make([]*node, 0, len(masters))
	for _, m := range masters {
		nodes = append(nodes, c.shard(m))
	}
	if err != nil {
		failed.Nodes = append(failed.Nodes, c.failed(callerEnded(ctx, err)))
		nodes = c.nodes()
	}
	answers := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() { answers <- n.pingShard(ctx) }()
	}
	for range nodes {
		if err := <-answers; err != nil {
			failed.Nodes = append(failed.Nodes, causes(err)...)
		}
	}
	if len(failed.Nodes) > 0 {
		return failed
	}
	return nil
}

// pingShard is ping for a shard. It also finds out whether the ACL allows ASKING, which is needed as
// soon as a slot moves. ASKING applies to the next command alone.
func (n *node) pingShard(ctx context.Context) error {
	if err := n.ping(ctx); err != nil || !n.sharded {
		return err
	}
	if _, _, err := send(ctx, n, "", driver.Plain("asking"), driver.Plain("ping")); hasCode(err, "NOPERM") {
		return err
	}
	return nil
}

// causes returns an error's nodes.
func causes(err error) []error {
	if u, ok := errors.AsType[*core.UnavailableError](err); ok {
		return u.Nodes
	}
	return []error{err}
}

// skew is how far this process's clock is ahead of a node's, as last seen.
type skew struct {
	known atomic.Bool
	ahead atomic.Int64 // in ns
}

// seen notes the time that a node answered, in seconds and microseconds.
func (s *skew) seen(sent time.Time, seconds, micros string) {
	sec, err := strconv.ParseInt(seconds, 10, 64)
	us, err2 := strconv.ParseInt(micros, 10, 64)
	if err == nil && err2 == nil {
		between := sent.Add(time.Since(sent) / 2)
		s.note(between.Round(0).Sub(time.Unix(sec, us*1000)))
	}
}

func (s *skew) note(ahead time.Duration) {
	s.ahead.Store(int64(ahead))
	s.known.Store(true)
}

package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend/internal/driver"
	"github.com/onelane/onelane/internal/leases"
	"github.com/onelane/onelane/internal/ownertext"
)

// A plain command costs Redis less than a script. features are which ones a server has; that is
// found out by trying, since proxies and other servers differ.
type features struct {
	none     bool // the connection takes scripts only
	noSetGet atomic.Bool
	deleting atomic.Int32
}

// How a server deletes a key that has a certain value.
const (
	deleteUnknown int32 = iota
	deleteRedis         // DELEX key IFEQ value (Redis 8.4)
	deleteValkey        // DELIFEQ key value (Valkey 9)
	deleteScript
)

// setGet reports whether SET takes NX together with GET (Redis 7.0).
func (f *features) setGet() bool { return !f.none && !f.noSetGet.Load() }

// acquirePlain is Acquire as one SET.
func (s *server) acquirePlain(ctx context.Context, q core.Request) (g core.Grant, r reply, n *node, err error) {
	px := strconv.FormatInt(ownertext.Millis(q.TTL+q.Orphan), 10)
	set := driver.Plain("set", q.Key, q.Owner, "nx", "get", "px", px)
	set.Confirm = true
	r, n, err = send(ctx, s.router, q.Key, set)
	switch {
	case err == nil:
	case isSyntaxError(err):
		n.features.noSetGet.Store(true)
		return s.acquireByScript(ctx, q)
	case cannotWrite(err):
		return g, r, n, s.readInstead(ctx, q, err)
	default:
		return g, r, n, err
	}
	value, text := set.Value.(string)
	switch {
	case set.Value == nil:
		return grant(q, r.sent), r, n, nil
	case !text: // nil alone says that nobody had the key
		return g, r, n, n.unavailable(q.Key, fmt.Errorf(
			"redisbackend: SET answered %T instead of a text; check whether a proxy changes answers", set.Value))
	case value == q.Owner:
		// A try before was granted, and its reply was lost.
		first := grant(q, r.sent.Add(-q.TTL))
		first, err := s.Extend(ctx, first, q.TTL)
		if errors.Is(err, core.ErrLost) {
			err = n.unavailable(q.Key, err)
		}
		return first, r, n, err
	case isSeal(value):
		token, sealed := unpackSeal(value)
		return g, r, n, &core.SealedError{Key: q.Key, Value: sealed, Token: token}
	}
	if q.Waiter != "" && ownertext.Orphan(value) == 0 {
		return g, r, n, leases.Taken(q.Key, value, 0) // it asks again at once, when it listens
	}
	// The holder of the key is known. One more question answers for how long, and whether the key
	// is orphaned.
	again, _, asked := s.call(ctx, q.Key, inspectScript, []string{q.Key})
	if asked == nil {
		return g, r, n, refusal(q, &again, n)
	}
	if ownertext.Orphan(value) > 0 || contextError(ctx) != nil {
		return g, r, n, asked
	}
	return g, r, n, leases.Taken(q.Key, value, 0)
}

// readInstead answers for a key that Redis could not write. Seals and holders are still known.
func (s *server) readInstead(ctx context.Context, q core.Request, refused error) error {
	r, n, err := s.call(ctx, q.Key, inspectScript, []string{q.Key})
	if err != nil || r.status == statusFree {
		return refused
	}
	return refusal(q, &r, n)
}

// releasePlain is Release as one command, together with the message to the waiters. If it is not
// done and there is no error, the script has to find out more.
func (s *server) releasePlain(ctx context.Context, g core.Grant, channel string) (w core.Waiters, done bool, r reply, n *node, err error) {
	n, err = s.router.route(ctx, g.Key)
	if err != nil {
		return unknownWaiters, false, r, nil, &core.UnavailableError{Key: g.Key, Nodes: []error{callerEnded(ctx, err)}}
	}
	known := n.features.deleting.Load()
	for how := max(known, deleteRedis); how < deleteScript && !n.features.none; how++ {
		del := driver.Plain("delex", g.Key, "ifeq", g.Owner)
		if how == deleteValkey {
			del = driver.Plain("delifeq", g.Key, g.Owner)
		}
		tell := driver.Plain(s.publish(), channel, s.id)
		pop := driver.Plain("spop", waiting(g.Key), "100")
		r, n, err = send(ctx, s.router, g.Key, del, tell)
		switch {
		case err == nil:
			n.features.deleting.Store(how)
			if deleted, _ := del.Value.(int64); deleted != 1 {
				return unknownWaiters, false, r, n, nil
			}
			heard, ok := tell.Value.(int64)
			if !ok {
				return unknownWaiters, true, r, n, nil
			}
			if heard > 0 {
				s.heard.Store(true)
				_, _, _ = send(ctx, s.router, g.Key, pop) // if it fails, only turns are lost
			}
			return waiters(s.id, n, pop.Value), true, r, n, nil
		case isUnknownCommand(err) || hasCode(err, "NOPERM"): // the script may be allowed
		case n == nil || how == known || errors.Is(err, errNotSent) || isTimeout(err) || contextError(ctx) != nil:
			return unknownWaiters, false, r, n, lostIfForeign(err)
		case isPassing(err):
			return unknownWaiters, false, r, n, nil
		default:
			// A proxy may close the connection on a command that it does not know.
			n.features.deleting.Store(deleteScript)
			r.retried = r.retried || !neverRan(err)
			return unknownWaiters, false, r, n, nil
		}
	}
	n.features.deleting.Store(deleteScript)
	return unknownWaiters, false, r, n, nil
}

// publish returns the command that sends a message on the channel of a key.
func (s *server) publish() string {
	if s.sharded {
		return "spublish"
	}
	return "publish"
}

// isLate reports whether a lease's certain time is over.
func isLate(g core.Grant) bool { return !time.Now().Before(g.Deadline) }

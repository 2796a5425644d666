package redisbackend

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
	"github.com/onelane/onelane/internal/ownertext"
)

const (
	defaultNodeTimeout = time.Second
	tokenBlock         = 256 // fencing tokens reserved per lease
	// fenceLife is how long a token counter outlives its last lease. By then the server's clock has
	// passed the counter, so a new counter begins above it.
	fenceLife = time.Hour
)

var (
	//go:embed lua/tell.lua
	tellSource string
	//go:embed lua/own.lua
	ownSource string
	//go:embed lua/mint.lua
	mintSource string
	//go:embed lua/acquire.lua
	acquireSource string
	//go:embed lua/mint_held.lua
	mintHeldSource string
	//go:embed lua/extend.lua
	extendSource string
	//go:embed lua/release.lua
	releaseSource string
	//go:embed lua/announce.lua
	announceSource string
	//go:embed lua/seal.lua
	sealSource string
	//go:embed lua/orphan.lua
	orphanSource string
	//go:embed lua/unseal.lua
	unsealSource string
	//go:embed lua/inspect.lua
	inspectSource string

	acquireScript = newScript(2, mintSource+announceSource, acquireSource)
	mintScript    = newScript(2, ownSource+mintSource, mintHeldSource)
	extendScript  = newScript(1, ownSource, extendSource)
	releaseScript = newScript(1, tellSource, releaseSource)
	sealScript    = newScript(1, ownSource+tellSource, sealSource)
	orphanScript  = newScript(1, ownSource+tellSource, orphanSource)
	unsealScript  = newScript(2, tellSource, unsealSource)
	inspectScript = newScript(1, "", inspectSource)
)

// server is the Backend on one Redis, Sentinel or Redis Cluster.
type server struct {
	router  router
	id      string       // in the messages that this backend publishes
	sharded bool         // its pub/sub
	heard   atomic.Bool  // somebody listened to the last release
	end     func() error // of its instruments
}

func (s *server) channel(key string) string { return channelName(key, s.sharded) }

// retriedGrant is the note on a grant whose Acquire was sent more than once. A copy of it may still
// be under way when the lease is released.
type retriedGrant struct{}

func (s *server) call(ctx context.Context, key string, script *script, keys []string, args ...string) (reply, *node, error) {
	return send(ctx, s.router, key, scriptCommand(script, keys, args...))
}

// callConfirmed is call for a change that replicas must confirm, if the configuration says so.
func (s *server) callConfirmed(ctx context.Context, key string, script *script, keys []string, args ...string) (reply, *node, error) {
	c := scriptCommand(script, keys, args...)
	c.Confirm = true
	return send(ctx, s.router, key, c)
}

// fence returns the name of the counter of key's fencing tokens.
func fence(key string) string { return companion(key, "fence") }

func (s *server) Acquire(ctx context.Context, q core.Request) (core.Grant, error) {
	n, err := s.router.route(ctx, q.Key)
	if err != nil {
		return core.Grant{}, &core.UnavailableError{Key: q.Key, Nodes: []error{callerEnded(ctx, err)}}
	}
	var g core.Grant
	var r reply
	// A waiter finds the key taken as a rule. The script takes one round trip for that, and notes the waiter.
	if !q.Token && q.Adopt == "" && q.Needs == 0 && n.features.setGet() {
		g, r, n, err = s.acquirePlain(ctx, q)
	} else {
		g, r, n, err = s.acquireByScript(ctx, q)
	}
	if err == nil && isLate(g) {
		err = n.unavailable(q.Key, errors.New("the answer came when the lease was about to end; try again, or use a longer TTL"))
	}
	// After an adoption of unknown outcome, the key becomes an orphan again when the lease ends. A
	// release would delete the orphan.
	adopted := q.Adopt != "" && q.Orphan > 0
	if err == nil {
		if r.retried {
			g.Backend = retriedGrant{}
		}
		if err = n.confirmed(ctx, q.Key, r); err == nil {
			return g, nil
		}
		if !adopted {
			_, _ = s.Release(ctx, g) // if it fails, it goes on in the background
		}
		return core.Grant{}, err
	}
	unknown := errors.Is(err, core.ErrUnavailable) && !neverRan(err)
	if n != nil && (unknown || r.retried) && !adopted {
		n.cleanUp(q.Key, q.Owner, time.Now().Add(q.TTL+q.Orphan), r.late)
	}
	return core.Grant{}, err
}

// acquireByScript acquires if a plain command is not enough.
func (s *server) acquireByScript(ctx context.Context, q core.Request) (g core.Grant, r reply, n *node, err error) {
	token := "0"
	if q.Token {
		token = "1"
	}
	r, n, err = s.callConfirmed(ctx, q.Key, acquireScript, []string{q.Key, fence(q.Key)},
		q.Owner, millis(q.TTL+q.Orphan), token, millis(q.TTL+q.Orphan+fenceLife),
		q.Adopt, millis(ownertext.Orphan(q.Adopt)), waiterText(s.id, q), waiting(q.Key), millis(waiterLife))
	if err != nil {
		return g, r, n, err
	}
	if r.status != statusDone {
		return g, r, n, refusal(q, &r, n)
	}
	g = grant(q, r.sent)
	if q.Token {
		if g.Token, g.Tokens, err = r.tokens(1); err != nil {
			err = n.unavailable(q.Key, err)
		}
	}
	return g, r, n, err
}

func grant(q core.Request, sent time.Time) core.Grant {
	return core.Grant{Key: q.Key, Owner: q.Owner, Orphan: q.Orphan, Deadline: leases.Deadline(sent, q.TTL)}
}

// refusal returns why a key was not granted, from an answer that has its value and PTTL.
func refusal(q core.Request, r *reply, n *node) error {
	st, err := r.state()
	switch {
	case err != nil:
		return n.unavailable(q.Key, err)
	case st.Status == core.Sealed:
		return &core.SealedError{Key: q.Key, Value: st.Value, Token: st.Token}
	case st.Status == core.Orphaned:
		return &core.OrphanedError{Key: q.Key, Owner: st.Owner, Since: st.Since}
	case st.Status == core.Held:
		return leases.Taken(q.Key, st.Owner, st.ExpiresIn)
	default: // it has just become free
		return leases.Taken(q.Key, "", time.Millisecond)
	}
}

func (s *server) Mint(ctx context.Context, g core.Grant) (core.Grant, error) {
	if g.Token != 0 {
		return g, nil
	}
	life := max(time.Until(g.Deadline), 0) + g.Orphan + fenceLife
	r, n, err := s.call(ctx, g.Key, mintScript, []string{g.Key, fence(g.Key)},
		g.Owner, millis(g.Orphan), millis(life))
	if errors.Is(err, core.ErrInvalidKey) {
		return g, n.unavailable(g.Key, err) // the counter may be foreign, and not the key
	}
	if err != nil {
		return g, err
	}
	if r.status != statusDone {
		return g, r.lost()
	}
	if g.Token, g.Tokens, err = r.tokens(1); err != nil {
		return g, n.unavailable(g.Key, err)
	}
	return g, nil
}

func (s *server) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	r, n, err := s.callConfirmed(ctx, g.Key, extendScript, []string{g.Key},
		g.Owner, millis(g.Orphan), millis(ttl+g.Orphan))
	if err != nil {
		return g, lostIfForeign(err)
	}
	if r.status != statusDone {
		return g, r.lost()
	}
	if err := n.confirmed(ctx, g.Key, r); err != nil {
		return g, err
	}
	if d := leases.Deadline(r.sent, ttl); d.After(g.Deadline) {
		g.Deadline = d
	}
	return g, nil
}

func (s *server) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	channel := s.channel(g.Key)
	waiters, r, n, err := s.release(ctx, g, channel)
	if n != nil && err == nil {
		n.freed(channel)
	}
	switch {
	case n == nil:
		return unknownWaiters, err
	case errors.Is(err, core.ErrUnavailable):
		n.cleanUp(g.Key, g.Owner, g.Deadline.Add(g.Orphan), r.late)
	case g.Backend == retriedGrant{}:
		n.cleanUp(g.Key, g.Owner, g.Deadline.Add(g.Orphan), nil)
	}
	return waiters, err
}

func (s *server) release(ctx context.Context, g core.Grant, channel string) (w core.Waiters, r reply, n *node, err error) {
	retried, first := false, "1" // the message names who goes first
	if !s.heard.Load() {
		w, done, r, n, err := s.releasePlain(ctx, g, channel)
		if done || err != nil {
			return w, r, n, err
		}
		retried, first = r.retried, ""
	}
	r, n, err = s.call(ctx, g.Key, releaseScript, []string{g.Key}, g.Owner, channel, s.id, waiting(g.Key), first)
	if err != nil {
		return unknownWaiters, r, n, lostIfForeign(err)
	}
	switch r.status {
	case statusDone:
		listen, nobodyWaits := r.fields[1].(int64)
		s.heard.Store(!nobodyWaits || listen > 0)
		return waiters(s.id, n, r.fields[1]), r, n, nil
	case statusSealed:
		if sealedBy(g, r.text(1)) {
			return unknownWaiters, r, n, nil
		}
	case statusHeld, statusFree:
		if (r.retried || retried) && !isLate(g) {
			return unknownWaiters, r, n, nil // the try before released it
		}
	}
	return unknownWaiters, r, n, r.lost()
}

func (s *server) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	channel := s.channel(g.Key)
	r, n, err := s.callConfirmed(ctx, g.Key, sealScript, []string{g.Key},
		g.Owner, channel, s.id, string(packSealOf(g, value)), millis(retention))
	if err != nil {
		return lostIfForeign(err)
	}
	if r.status != statusDone {
		return r.lost()
	}
	n.freed(channel)
	return n.confirmed(ctx, g.Key, r)
}

// Orphan ends the lease. The orphan gets the rest of the key's time.
func (s *server) Orphan(ctx context.Context, g core.Grant) error {
	channel := s.channel(g.Key)
	r, n, err := s.callConfirmed(ctx, g.Key, orphanScript, []string{g.Key},
		g.Owner, millis(g.Orphan), channel, s.id)
	if err != nil {
		return lostIfForeign(err)
	}
	if r.status != statusDone {
		return r.lost()
	}
	n.freed(channel)
	return n.confirmed(ctx, g.Key, r)
}

// Unseal frees what Inspect saw, and nothing that came later.
func (s *server) Unseal(ctx context.Context, key string) error {
	r, n, err := s.call(ctx, key, inspectScript, []string{key})
	if err != nil {
		return err
	}
	st, err := r.state()
	if err != nil {
		return n.unavailable(key, err)
	}
	if st.Status != core.Sealed && st.Status != core.Orphaned {
		return nil
	}
	_, _, err = s.call(ctx, key, unsealScript, []string{key, fence(key)}, s.channel(key), "",
		millis(fenceLife), sha1Hex(r.text(1)), millis(ownertext.Orphan(st.Owner)))
	return err
}

func (s *server) Inspect(ctx context.Context, key string) (core.State, error) {
	r, n, err := s.call(ctx, key, inspectScript, []string{key})
	if err != nil {
		return core.State{}, err
	}
	st, err := r.state()
	if err != nil {
		return st, n.unavailable(key, err)
	}
	return st, nil
}

func (s *server) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	n, err := s.router.route(ctx, key)
	if err != nil {
		return nil, func() {}, err
	}
	if n.wakes == nil {
		return nil, func() {}, nil
	}
	changed := make(chan struct{}, 1)
	stop, err := n.watch(ctx, key, changed)
	return changed, stop, err
}

func (s *server) Close() error { return errors.Join(s.end(), s.router.close()) }

package redisbackend

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/loglimit"
)

const (
	// A node that failed excludeAfter times in a row is not asked for coolDown, unless the others
	// cannot decide. Then one call probes it.
	excludeAfter = 3
	coolDown     = time.Second
)

var errExcluded = errors.New("redisbackend: this node did not answer several times and is not asked for a second")

// The reasons for which a node has no vote. They are attributes of onelane.nodes.excluded.
const (
	reasonTimeouts  = "timeouts"
	reasonRestarted = "restarted"
	reasonClock     = "clock"
	reasonACL       = "acl" // it does not tell when it started
)

// health is what a quorum knows of a node, so that one that hangs costs nothing.
type health struct {
	node *node

	mu       sync.Mutex
	failures int
	probeAt  time.Time
	reason   string    // why it has no vote, or empty
	until    time.Time // when a node that has restarted abstains no more
}

// admits reports whether the node is asked with the others.
func (h *health) admits(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reason != reasonTimeouts {
		return true
	}
	if now.Before(h.probeAt) {
		return false
	}
	h.probeAt = now.Add(coolDown)
	return true
}

// answered notes the outcome of a call. If the caller's context ended it, the node is not to blame.
func (h *health) answered(err, caller error) {
	ok := err == nil || isServerReply(err)
	if !ok && caller != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ok {
		h.failures = 0
		if h.reason == reasonTimeouts {
			h.changeLocked("", nil)
		}
		return
	}
	if h.failures++; h.failures == excludeAfter {
		h.probeAt = time.Now().Add(coolDown)
		h.changeLocked(reasonTimeouts, err)
	}
}

// saw notes an answer to Acquire.
func (h *health) saw(v vote) {
	reason := ""
	switch {
	case v.err != nil || v.status != voteYes && v.status != voteAbstains && v.status != voteClock:
		return
	case v.status == voteAbstains && v.off < 0:
		reason = reasonACL
	case v.status == voteAbstains:
		reason = reasonRestarted
	case v.status == voteClock:
		reason = reasonClock
		h.node.skew.note(v.off)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if reason == reasonRestarted {
		h.until = time.Now().Add(v.off)
	}
	if h.reason != reason && h.reason != reasonTimeouts {
		h.changeLocked(reason, v.failure(h.node))
	}
}

// changeLocked notes why the node has no vote.
func (h *health) changeLocked(reason string, why error) {
	was := h.reason
	h.reason = reason
	if reason == "" {
		loglimit.Later(h.node.logger, slog.LevelInfo, "redisbackend: a node of the quorum has a vote again",
			"redis", h.node.conn.Address(), "reason", was)
		return
	}
	loglimit.Later(h.node.logger, slog.LevelWarn,
		"redisbackend: a node of the quorum has no vote; the others decide as long as they are a majority; look at this Redis",
		"redis", h.node.conn.Address(), "reason", reason, "error", why)
}

// excluded returns why the node has no vote, or "".
func (h *health) excluded() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reason == reasonRestarted && !time.Now().Before(h.until) {
		return "" // no answer says so if nobody asks, or if others have all the keys
	}
	if ahead := time.Duration(h.node.skew.ahead.Load()); h.reason == reasonClock && ahead.Abs() < clockTolerance {
		return "" // a Ping has seen it
	}
	return h.reason
}

// identity finds two nodes that are one Redis: what that Redis forgets, a majority may have
// forgotten. As long as there are two, each attempt looks again, and fails.
type identity struct {
	mu      sync.Mutex
	runs    []string
	known   atomic.Bool
	refused atomic.Pointer[core.UnavailableError]
}

// wanted is "1" as long as nodes have to say who they are.
func (d *identity) wanted() string {
	if d.known.Load() {
		return ""
	}
	return "1"
}

func (d *identity) saw(v vote, nodes []*node) {
	if d.known.Load() || v.err != nil || v.status != voteYes && v.status != voteHeld {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	run := v.run
	if run == "" {
		run = fmt.Sprint("unknown ", v.node) // by the ACL
	}
	d.runs[v.node] = run
	var refused *core.UnavailableError
	for j, other := range d.runs {
		if i := slices.Index(d.runs, other); other != "" && i < j {
			refused = &core.UnavailableError{Permanent: true, Nodes: []error{fmt.Errorf(
				"redisbackend: nodes %d and %d of the quorum are one Redis, at %s and %s; pass each master once",
				i+1, j+1, nodes[i].conn.Address(), nodes[j].conn.Address())}}
		}
	}
	d.refused.Store(refused)
	d.known.Store(refused == nil && !slices.Contains(d.runs, ""))
}

// refusal is the error of a quorum in which one Redis has two votes.
func (d *identity) refusal(key string) error {
	e := d.refused.Load()
	if e == nil {
		return nil
	}
	return &core.UnavailableError{Key: key, Nodes: e.Nodes, Permanent: true}
}

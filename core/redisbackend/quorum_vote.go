package redisbackend

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
)

// The answers of a node. The scripts of a quorum use the same numbers.
const (
	voteYes  = statusDone
	voteHeld = statusHeld // another owner has the lease
	voteFree = statusFree
	// The caller's clock is too far off, or its token.
	voteClock = 6
	// The node has just started, or does not tell when it did.
	voteAbstains = 7
)

// vote is one node's answer.
type vote struct {
	node    int
	status  int64
	promise uint64 // of a grant, an accepted promise or a held key
	owner   string // of a held key
	lease   time.Duration
	run     string // of the server, if it was asked for
	// off is how far the caller's clock is ahead, or how long the node abstains. It is negative if the
	// node does not tell when it started.
	off     time.Duration
	waiting any // who waits for a key that was released
	retried bool
	err     error
}

func newVote(i int, r reply, err error) vote {
	v := vote{node: i, retried: r.retried, err: err}
	if err != nil {
		return v
	}
	v.status = r.status
	switch number := func(i int) int64 { n, _ := strconv.ParseInt(r.text(i), 10, 64); return n }; v.status {
	case voteYes:
		v.promise, v.run = uint64(number(1)), r.text(2)
		if len(r.fields) > 1 {
			v.waiting = r.fields[1]
		}
	case voteHeld:
		v.owner, v.lease = strings.TrimPrefix(r.text(1), quorumMark), r.millis(3)
		v.promise, v.run = uint64(max(number(2), 0)), r.text(2)
	case voteClock:
		v.off = time.Duration(number(1)) * time.Microsecond
	case voteAbstains:
		v.off = time.Duration(number(1)) * time.Millisecond
	}
	return v
}

// yes reports whether the node did what it was asked for.
func (v vote) yes() bool { return v.has(voteYes) }

// has reports whether the node answered with a status.
func (v vote) has(status int64) bool { return v.err == nil && v.status == status }

// unsure reports whether the request, or an earlier copy of it, may yet have an effect.
func (v vote) unsure() bool {
	if v.err == nil {
		return v.retried
	}
	if errors.Is(v.err, errExcluded) || errors.Is(v.err, core.ErrInvalidKey) {
		return false
	}
	return v.retried || !neverRan(v.err)
}

// no reports whether the node does not have the lease.
func (v vote) no() bool {
	return v.err == nil && v.status != voteYes || errors.Is(lostIfForeign(v.err), core.ErrLost)
}

// failure returns why the node did not do what it was asked for.
func (v vote) failure(n *node) error {
	what := ""
	switch {
	case v.err != nil:
		if u, ok := v.err.(*core.UnavailableError); ok {
			return errors.Join(u.Nodes...)
		}
		return v.err
	case v.status == voteClock:
		what = fmt.Sprintf("grants nothing: this process's clock, or the token that another one left, is %v ahead of it; synchronize the clocks",
			v.off.Round(100*time.Millisecond))
	case v.status == voteAbstains && v.off < 0:
		what = "grants nothing, because it does not tell when it started; its ACL must allow LASTSAVE and INFO"
	case v.status == voteAbstains:
		what = fmt.Sprintf("has just started and grants nothing for %v", v.off.Round(100*time.Millisecond))
	case v.status == voteHeld:
		what = "has another owner"
	default:
		what = "does not have the lease"
	}
	return fmt.Errorf("redis %s %s", n.conn.Address(), what)
}

// tally is what the nodes answered to one round.
type tally struct {
	quorum *quorum
	asked  int
	votes  []vote
}

// count returns how many votes are so.
func (t *tally) count(so func(vote) bool) (n int) {
	for _, v := range t.votes {
		if so(v) {
			n++
		}
	}
	return n
}

func (t *tally) yes() int { return t.count(vote.yes) }

// decided reports whether a majority said yes, or cannot any more.
func (t *tally) decided(left int) bool {
	return t.yes() >= t.quorum.majority() || t.yes()+left < t.quorum.majority()
}

// ended reports whether a majority said yes, or so many no that the lease is lost.
func (t *tally) ended(int) bool {
	return t.yes() >= t.quorum.majority() || t.count(vote.no) > t.asked-t.quorum.majority()
}

// answered counts the nodes that said something about the key.
func (t *tally) answered() int {
	return t.count(func(v vote) bool { return v.err == nil && v.status != voteClock && v.status != voteAbstains })
}

// token returns the number of a lease that a majority granted. If no majority answered one number,
// agreed is false: the number is the largest, and has to be promised (rule 3).
func (t *tally) token() (number uint64, agreed bool) {
	for _, v := range t.votes {
		if !v.yes() {
			continue
		}
		if t.count(func(o vote) bool { return o.yes() && o.promise == v.promise }) >= t.quorum.majority() {
			return v.promise, true
		}
		number = max(number, v.promise)
	}
	return number, false
}

// holder returns the answer about the owner that most nodes name, with the shortest lease.
func (t *tally) holder() (h vote, most int) {
	for _, v := range t.votes {
		if !v.has(voteHeld) {
			continue
		}
		same, first := 0, v
		for _, o := range t.votes {
			if o.has(voteHeld) && o.owner == v.owner {
				same++
				first.lease = min(first.lease, o.lease)
			}
		}
		if same > most || same == most && first.lease < h.lease {
			h, most = first, same
		}
	}
	return h, most
}

// outcome returns nil if a majority said yes. If the nodes do not have the lease any more, it
// returns ErrLost. Otherwise it returns *UnavailableError.
func (t *tally) outcome(key string) error {
	majority := t.quorum.majority()
	switch {
	case t.yes() >= majority:
		return nil
	case t.count(vote.no) <= t.asked-majority:
		return t.unavailable(key)
	}
	if h, n := t.holder(); n > 0 {
		return leases.Lost(core.Held, h.owner)
	}
	return errExpired
}

var errExpired = fmt.Errorf("%w: the lease expired or was deleted", core.ErrLost)

// unavailable tells why there was no majority.
func (t *tally) unavailable(key string, also ...error) error {
	e := &core.UnavailableError{Key: key, Nodes: also}
	invalid, permanent := 0, 0
	for _, v := range t.votes {
		if v.yes() {
			continue
		}
		if u, ok := v.err.(*core.UnavailableError); ok && u.Permanent {
			permanent++
		}
		if errors.Is(v.err, core.ErrInvalidKey) {
			if invalid++; invalid >= t.quorum.majority() {
				return v.err
			}
		}
		e.Nodes = append(e.Nodes, v.failure(t.quorum.nodes[v.node]))
	}
	e.Permanent = permanent >= t.quorum.majority()
	if len(e.Nodes) == 0 {
		e.Nodes = []error{errors.New("redisbackend: no majority of the nodes agreed; try again")}
	}
	return e
}

package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

// The answers of a node. The scripts lua/quorum_*.lua use the same numbers.
const (
	voteYes      = 1
	voteHeld     = 2 // another owner has the lease
	voteSealed   = 3 // a value keeps others out
	voteFree     = 4
	voteClock    = 6 // the caller's clock is too far off
	voteAbstains = 7 // the node has just started
	voteRefused  = 8 // the node promised or accepted more
)

// stamp orders what nodes accept.
type stamp struct {
	ballot uint64
	step   int
}

func (s stamp) less(o stamp) bool {
	return s.ballot < o.ballot || s.ballot == o.ballot && s.step < o.step
}

// void is the value of Unseal, and what a holder writes over leftovers.
const void = "V"

// begun returns the record of an orphan. Its holder writes it before it runs.
func begun(owner string, retention time.Duration) string {
	return fmt.Sprintf("B%d:%s", ownertext.Millis(retention), owner)
}

// orphan returns the owner and the retention of an orphan's record.
func orphan(value string) (owner string, retention time.Duration, ok bool) {
	if !strings.HasPrefix(value, "B") {
		return "", 0, false
	}
	ms, owner, ok := strings.Cut(value[1:], ":")
	n, err := strconv.ParseInt(ms, 10, 64)
	return owner, time.Duration(n) * time.Millisecond, ok && err == nil
}

// since returns when the lease of an orphan ended.
func since(record accepted, retention time.Duration) time.Time {
	return time.Now().Add(min(time.Until(record.ends)-retention, 0))
}

// accepted is what a node accepted last. The zero value is nothing.
type accepted struct {
	at    stamp
	value string
	ends  time.Time // by its PTTL
}

// life returns for how many ms the value lasts.
func (a accepted) life() int64 { return max(ownertext.Millis(time.Until(a.ends)), 1) }

// closed reports whether the value keeps others out.
func (a accepted) closed() bool { return a.value != "" && a.value != void }

// vote is one node's answer.
type vote struct {
	node   int
	status int64
	ballot uint64
	by     string
	owner  string
	lease  time.Duration // the owner's PTTL
	accepted
	extra   string
	waiting int64 // how many others wait for the key, in an answer to release
	retried bool
	err     error
}

func newVote(i int, r reply, err error) vote {
	v := vote{node: i, retried: r.retried, err: err}
	if err != nil {
		return v
	}
	v.status, v.extra, v.by, v.owner, v.lease = r.status, r.text(2), r.text(3), r.text(4), r.millis(5)
	v.ballot, v.err = r.uint(1)
	if what := r.text(6); what != "" {
		at, rest, _ := strings.Cut(what, " ")
		step, value, _ := strings.Cut(rest, " ")
		v.at.ballot, _ = strconv.ParseUint(at, 10, 64)
		v.at.step, _ = strconv.Atoi(step)
		v.value, v.ends = value, time.Now().Add(r.millis(7))
	}
	v.waiting = r.number(2)
	return v
}

// yes reports whether the node did what it was asked for.
func (v vote) yes() bool { return v.err == nil && v.status == voteYes }

// unsure reports whether the request may have had, or may yet have, an effect without an answer.
func (v vote) unsure() bool {
	if v.err == nil || errors.Is(v.err, errExcluded) || errors.Is(v.err, core.ErrInvalidKey) {
		return false
	}
	return v.retried || !neverRan(v.err)
}

// ahead returns how far this process's clock is ahead of the node's, from an answer about clocks.
func (v vote) ahead() time.Duration {
	us, _ := strconv.ParseInt(v.extra, 10, 64)
	return time.Duration(us) * time.Microsecond
}

// abstains returns for how long the node still abstains, from an answer about that.
func (v vote) abstains() time.Duration {
	ms, _ := strconv.ParseInt(v.extra, 10, 64)
	return time.Duration(ms) * time.Millisecond
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
		what = fmt.Sprintf("grants no new key: this process's clock is %v ahead of it", v.ahead().Round(100*time.Millisecond))
	case v.status == voteAbstains:
		what = "has just started and grants nothing for one TTL"
	case v.status == voteRefused:
		what = "is promised to another caller"
	case v.status == voteHeld:
		what = "has another owner"
	case v.status == voteSealed:
		what = "has a value that no majority is known to have"
	default:
		what = "does not have the lease"
	}
	return fmt.Errorf("redis %s %s", n.conn.Address(), what)
}

// tally is what the nodes answered to one request.
type tally struct {
	quorum *quorum
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

// answered counts the nodes that answered at all.
func (t *tally) answered() int { return t.count(notFailed) }

// has counts an answer with a status.
func has(status int64) func(vote) bool {
	return func(v vote) bool { return v.err == nil && v.status == status }
}

// ballot returns the largest ballot that was answered.
func (t *tally) ballot() (b uint64) {
	for _, v := range t.votes {
		b = max(b, v.ballot)
	}
	return b
}

func notFailed(v vote) bool { return v.err == nil }

func notHeld(v vote) bool { return v.err == nil && v.status != voteHeld }

// decided returns the value that most of such nodes accepted under one stamp. On a majority it is
// decided.
func (t *tally) decided(such func(vote) bool) (a accepted, most int) {
	for _, v := range t.votes {
		if !such(v) || v.value == "" {
			continue
		}
		same, longest := 0, v.accepted
		for _, o := range t.votes {
			if such(o) && o.at == v.at && o.value == v.value {
				if same++; o.ends.After(longest.ends) {
					longest = o.accepted
				}
			}
		}
		if same > most {
			a, most = longest, same
		}
	}
	return a, most
}

// holder returns the answer of a node of the owner that most nodes name, with the shortest lease.
func (t *tally) holder() (h vote, most int) {
	for _, v := range t.votes {
		if !has(voteHeld)(v) {
			continue
		}
		same, first := 0, v
		for _, o := range t.votes {
			if has(voteHeld)(o) && o.owner == v.owner {
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

// newest returns the value with the highest stamp among such nodes.
func (t *tally) newest(such func(vote) bool) (a accepted) {
	for _, v := range t.votes {
		if such(v) && v.value != "" && a.at.less(v.at) {
			a = v.accepted
		}
	}
	return a
}

// voidLife returns for how many ms VOID must last over the values that were seen, or 0 if there
// were none.
func (t *tally) voidLife() (ms int64) {
	for _, v := range t.votes {
		switch {
		case v.closed():
			ms = max(ms, outlive(time.Until(v.ends)))
		case v.value != "":
			ms = max(ms, v.life())
		}
	}
	return ms
}

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

// ask asks for a majority of yes.
func (q *quorum) askMajority(ctx context.Context, r round) (t tally, rest <-chan vote) {
	t.quorum = q
	rest = q.ask(ctx, r, func(v vote, left int) bool {
		t.votes = append(t.votes, v)
		return t.yes() >= q.majority() || t.yes()+left < q.majority()
	})
	return t, rest
}

// outlive returns for how long VOID must last over a value that lasts for d: clocks may run at
// different speeds, and requests take time.
func outlive(d time.Duration) int64 { return ownertext.Millis(d + d/100 + promiseLife) }

// micros is the ballot of a new key.
func micros(t time.Time) string { return strconv.FormatInt(t.UnixMicro(), 10) }

package redisbackend

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
	"github.com/onelane/onelane/internal/ownertext"
)

// The first element of every script's answer. The scripts in lua/ use the same numbers.
const (
	statusDone     = 1 // granted, extended, released, sealed, unsealed
	statusHeld     = 2 // another owner holds the key
	statusSealed   = 3
	statusFree     = 4 // gone, expired or deleted
	statusOrphaned = 5
)

// reply is a script's answer: a status and its fields.
type reply struct {
	status  int64
	fields  []any
	sent    time.Time       // when the try that was answered was sent.
	retried bool            // an earlier try may have had its effect.
	late    <-chan struct{} // closed when a call that was given up has ended; nil if it ended before.
	// unconfirmed says that too few replicas confirmed what the call wrote, or is nil.
	unconfirmed error
}

// decode reads a script's array: numbers as int64, texts as string or []byte. A number alone is
// that of statusDone.
func (r *reply) decode(v any) error {
	if n, ok := v.(int64); ok {
		r.status, r.fields = statusDone, []any{int64(statusDone), n}
		return nil
	}
	fields, ok := v.([]any)
	if !ok || len(fields) == 0 {
		return fmt.Errorf("redisbackend: a script answered %T instead of an array; check whether a proxy changes answers", v)
	}
	r.fields = fields
	if r.status, ok = fields[0].(int64); !ok {
		return fmt.Errorf("redisbackend: a script answered %T instead of a status; check whether a proxy changes answers", fields[0])
	}
	return nil
}

// text returns field i as text, or "".
func (r *reply) text(i int) string {
	if i >= len(r.fields) {
		return ""
	}
	switch v := r.fields[i].(type) {
	case string:
		return v
	case []byte:
		return string(v)
	default:
		return ""
	}
}

// uint returns field i as a number. Large numbers come as text: Lua's own lose digits.
func (r *reply) uint(i int) (uint64, error) {
	if i < len(r.fields) {
		if n, ok := r.fields[i].(int64); ok && n >= 0 {
			return uint64(n), nil
		}
	}
	n, err := strconv.ParseUint(r.text(i), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("redisbackend: a script answered no number; check whether a proxy changes answers: %w", err)
	}
	return n, nil
}

// millis returns field i, a PTTL: 0 for a key without expiry, at least 1 ms for one about to
// expire.
func (r *reply) millis(i int) time.Duration {
	if i < len(r.fields) {
		if n, ok := r.fields[i].(int64); ok && n >= 0 {
			return time.Duration(max(n, 1)) * time.Millisecond
		}
	}
	return 0
}

// tokens returns the block of fencing tokens whose last one is field i.
func (r *reply) tokens(i int) (first, count uint64, err error) {
	last, err := r.uint(i)
	return last - tokenBlock + 1, tokenBlock, err
}

// state returns the state of a key from a reply of its value and PTTL.
func (r *reply) state() (core.State, error) {
	switch r.status {
	case statusFree:
		return core.State{Status: core.Free}, nil
	case statusSealed:
		token, value := unpackSeal(r.text(1))
		return core.State{Status: core.Sealed, Token: token, Value: value, ExpiresIn: r.millis(2)}, nil
	case statusHeld:
		if strings.HasPrefix(r.text(1), quorumMark) {
			return core.State{}, errOfQuorum
		}
		return heldState(r.text(1), r.millis(2)), nil
	default:
		return core.State{}, r.unexpected()
	}
}

var errOfQuorum = errors.New("redisbackend: this Redis is one master of a quorum and does not decide alone; pass all masters")

// heldState returns the state of a key that holds owner for left, or forever if left is 0. At the
// end of the lease, what is left is the retention of its orphan.
func heldState(owner string, left time.Duration) core.State {
	retention := ownertext.Orphan(owner)
	switch {
	case retention == 0 || left == 0:
		return core.State{Status: core.Held, Owner: owner, ExpiresIn: left}
	case left > retention:
		return core.State{Status: core.Held, Owner: owner, ExpiresIn: left - retention}
	default:
		return core.State{Status: core.Orphaned, Owner: owner, ExpiresIn: left, Since: time.Now().Add(left - retention)}
	}
}

func (r *reply) unexpected() error {
	return fmt.Errorf("redisbackend: a script answered with status %d, which this version does not know; check whether there is a newer version of this package, or a proxy that changes answers", r.status)
}

// lost returns how the lease was found to be gone.
func (r *reply) lost() error {
	switch r.status {
	case statusHeld:
		return leases.Lost(core.Held, r.text(1))
	case statusSealed:
		return leases.Lost(core.Sealed, "")
	case statusOrphaned:
		return fmt.Errorf("%w: the lease ended and the key is orphaned", core.ErrLost)
	default:
		return fmt.Errorf("%w: the key expired or was deleted", core.ErrLost)
	}
}

// isServerReply reports whether err is a reply of the server or of a proxy, not a failure to reach
// it.
func isServerReply(err error) bool {
	return isReply(err) || hasCode(err, serverCodes...)
}

// serverCodes are how the errors of a server begin, from clients whose errors have no type.
var serverCodes = []string{"ERR", "OOM", "READONLY", "LOADING", "BUSY", "MISCONF", "NOREPLICAS", "NOAUTH", "NOPERM",
	"WRONGPASS", "MASTERDOWN", "CLUSTERDOWN", "CROSSSLOT", "TRYAGAIN", "MOVED", "ASK", "NOSCRIPT", "WRONGTYPE", "UNKILLABLE"}

// isIntact reports whether a connection can be used after a call that ended with err.
func isIntact(err error) bool { return err == nil || isReply(err) }

func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// hasCode reports whether err is, or wraps, an answer that begins with one of the codes. Some
// clients have no type for them.
func hasCode(err error, codes ...string) bool {
	switch e := err.(type) {
	case nil:
		return false
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), func(err error) bool { return hasCode(err, codes...) })
	case interface{ Unwrap() error }:
		if hasCode(e.Unwrap(), codes...) {
			return true
		}
	}
	text := err.Error()
	return slices.ContainsFunc(codes, func(code string) bool {
		rest, ok := strings.CutPrefix(text, code)
		return ok && (rest == "" || rest[0] == ' ')
	})
}

// neverRan reports whether err proves that the call had no effect: it was not sent, or Redis
// refused it before it ran. Another error may be a proxy's, which may have passed the call on.
func neverRan(err error) bool {
	return errors.Is(err, errNotSent) || hasCode(err, "NOAUTH", "WRONGPASS", "NOPERM", "LOADING", "MASTERDOWN", "MOVED", "ASK",
		"TRYAGAIN", "CLUSTERDOWN", "CROSSSLOT", "NOSCRIPT", "READONLY", "OOM", "MISCONF", "NOREPLICAS", "WRONGTYPE") ||
		isSyntaxError(err) || isUnknownCommand(err)
}

// cannotWrite reports whether Redis refuses writes for now. It still answers reads.
func cannotWrite(err error) bool { return hasCode(err, "OOM", "MISCONF", "NOREPLICAS", "READONLY") }

// isPassing reports whether Redis refuses a command for now, whatever the command is.
func isPassing(err error) bool {
	return cannotWrite(err) || hasCode(err, "BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOAUTH", "WRONGPASS")
}

// isForbidden reports whether trying again cannot help. An error about a forbidden command within a
// script has no code of its own. Redis 6 puts text around it, and rueidis leaves out "ERR".
func isForbidden(err error) bool {
	return hasCode(err, "NOAUTH", "WRONGPASS", "NOPERM") || err != nil &&
		(strings.Contains(err.Error(), "The user executing the script ") || strings.Contains(err.Error(), "ACL failure in script"))
}

func isSyntaxError(err error) bool { return hasCode(err, "ERR syntax error") }

func isUnknownCommand(err error) bool { return hasCode(err, "ERR unknown command") }

// isMoving reports whether a slot of a Redis Cluster is on its way to another master, or there
// already. The call has not run.
func isMoving(err error) bool { return hasCode(err, "MOVED", "ASK", "TRYAGAIN") }

// isWrongType reports whether the key holds a value of another type, which is not ours.
func isWrongType(err error) bool { return err != nil && strings.Contains(err.Error(), "WRONGTYPE") }

// lostIfForeign makes ErrLost of a key that somebody overwrote with another type.
func lostIfForeign(err error) error {
	if errors.Is(err, core.ErrInvalidKey) {
		return fmt.Errorf("%w: %v", core.ErrLost, err)
	}
	return err
}

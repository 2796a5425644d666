package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
	"github.com/onelane/onelane/internal/ownertext"
)

// replicaPart is the part of the TTL that ReplicaTimeout may have at most. A renewal takes a sixth
// of the TTL, and must hear that replicas are missing before that.
const replicaPart = 8

var errSlotMoves = errors.New("redisbackend: the key's slot is moving to another master; try again")

// replicas is what WAIT asks for: how many replicas must confirm what was written, and within what
// time.
type replicas struct {
	count   int
	timeout time.Duration
}

// unconfirmedError says that too few replicas confirmed. The write itself was done.
type unconfirmedError struct {
	confirmed int64
	wanted    int
	within    string // ms
	cause     error  // why WAIT failed, or nil
}

func (e *unconfirmedError) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("replicas cannot confirm the write: %v", e.cause)
	}
	return fmt.Sprintf("%d of the %d replicas that Config.Replicas asks for confirmed the write within %s ms",
		e.confirmed, e.wanted, e.within)
}

func (e *unconfirmedError) Unwrap() error { return e.cause }

// validReplicas refuses what WAIT cannot confirm.
func (c Config) validReplicas(ttl time.Duration) error {
	switch {
	case c.Replicas == 0 && c.ReplicaTimeout == 0:
		return nil
	case c.Replicas < 0:
		return fmt.Errorf("number of replicas %d must not be negative", c.Replicas)
	case c.Replicas == 0:
		return fmt.Errorf("ReplicaTimeout is %v without Replicas; set both", c.ReplicaTimeout)
	case len(c.Pools) > 0:
		return errors.New("WAIT must follow the write on its connection, which redsync pools cannot do; with Replicas, use New and a go-redis client")
	case c.count() > 1:
		return errors.New("the masters of a quorum are independent, and a majority of them decides; Replicas is for one Redis with replicas")
	case c.ReplicaTimeout <= 0:
		return fmt.Errorf("ReplicaTimeout %v must be positive if Replicas is set", c.ReplicaTimeout)
	case c.ReplicaTimeout > ttl/replicaPart:
		return fmt.Errorf("ReplicaTimeout %v must be at most %v, an eighth of the TTL: a renewal that fails must have time for another try",
			c.ReplicaTimeout, ttl/replicaPart)
	}
	return nil
}

// patience returns how long a pipeline may wait for replicas. Callers that leave at a deadline get
// the answer before it.
func (r *replicas) patience(caller, now time.Time) time.Duration {
	if r == nil {
		return 0
	}
	d := r.timeout
	if !caller.IsZero() {
		d = min(d, caller.Sub(now)*3/4)
	}
	return max(d, time.Millisecond) // WAIT with 0 waits forever
}

// withWait returns a pipeline with its WAIT. One WAIT confirms all that was written before it.
func (r *replicas) withWait(commands []*command, patience time.Duration) []*command {
	if r == nil {
		return commands
	}
	wait := driver.Plain("wait", strconv.Itoa(r.count), strconv.FormatInt(ownertext.Millis(patience), 10))
	return append(commands[:len(commands):len(commands)], wait)
}

// confirm reads the answer of a pipeline's WAIT. If too few replicas confirmed, or WAIT was not
// answered, each command that succeeded keeps its value and gets an unconfirmedError.
func (r *replicas) confirm(pipeline []*command) {
	if r == nil {
		return
	}
	last := len(pipeline) - 1
	wait := pipeline[last]
	confirmed, _ := wait.Value.(int64)
	if wait.Err == nil && confirmed >= int64(r.count) {
		return
	}
	err := &unconfirmedError{confirmed: confirmed, wanted: r.count, within: wait.Words[2], cause: wait.Err}
	for _, c := range pipeline[:last] {
		if c.Err == nil {
			c.Err = err
		}
	}
}

// splitUnconfirmed takes an unconfirmedError out of a call's errors: the call has a reply.
func splitUnconfirmed(err error) (unconfirmed, other error) {
	if e, ok := errors.AsType[*unconfirmedError](err); ok {
		return e, nil
	}
	return nil, err
}

// confirmed returns why a change is not certain to be on enough replicas, or nil.
func (n *node) confirmed(ctx context.Context, key string, r reply) error {
	if r.unconfirmed == nil {
		return nil
	}
	return n.unavailable(key, callerEnded(ctx, r.unconfirmed))
}

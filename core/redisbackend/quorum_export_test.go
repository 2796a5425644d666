package redisbackend

import (
	"context"
	"strconv"
	"time"

	"github.com/onelane/onelane/core"
)

// QuorumMark begins a lease on a node of a quorum.
const QuorumMark = quorumMark

// SetQuorumClock replaces the clock that a quorum's callers send with their attempts.
func SetQuorumClock(b core.Backend, now func() time.Time) { b.(*quorum).now = now }

// PromiseOnNode asks one node to promise a number to the owner of a key (rule 3). It reports what the
// node has promised, and whether it accepted.
func PromiseOnNode(b core.Backend, node int, key, owner string, number uint64) (promised uint64, accepted bool) {
	q := b.(*quorum)
	v := q.call(context.Background(), node, q.round(key, quorumPromiseScript, owner, strconv.FormatUint(number, 10)))
	return v.promise, v.yes()
}

package redisbackend

import (
	"time"

	"github.com/onelane/onelane/core"
)

// QuorumMark begins a lease on a node of a quorum.
const QuorumMark = quorumMark

// SetQuorumClock replaces the clock from which a quorum's new keys get their ballots.
func SetQuorumClock(b core.Backend, now func() time.Time) { b.(*quorum).now = now }

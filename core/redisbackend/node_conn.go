package redisbackend

import (
	"context"
	"time"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

const (
	// callConnections is how many connections to one Redis a backend has at most for its calls.
	// Those for renewals are renewalConnections, and never wait behind other calls. A quorum has
	// one to each master, because each call goes to all of them.
	callConnections    = 4
	quorumConnections  = 1
	renewalConnections = 2

	// followTime is how long a connection that Sentinel chose is used before the next one asks
	// Sentinel again. A master that was replaced may go on to answer us.
	followTime = 3 * time.Second
)

// nodeConn reaches one Redis over connections of its own. It bounds its calls itself.
type nodeConn struct {
	node     driver.Node
	calls    *connections
	renewals *connections
}

// newNodeConn returns a nodeConn whose calls take as long as l allows. If r is not nil, replicas
// confirm what they write.
func newNodeConn(d driver.Node, l *latency, r *replicas, most int) *nodeConn {
	return &nodeConn{d, newConnections(d, l, r, most), newConnections(d, l, r, renewalConnections)}
}

func (c *nodeConn) Do(ctx context.Context, commands ...*command) (<-chan struct{}, error) {
	if commands[0].Renewal {
		return c.renewals.do(ctx, commands...)
	}
	return c.calls.do(ctx, commands...)
}

func (c *nodeConn) Address() string { return c.node.Address() }

func (c *nodeConn) Close() error {
	c.calls.close()
	c.renewals.close()
	if c.node.Close != nil {
		c.node.Close()
	}
	return nil
}

// lifeOf returns how long a new connection to d is used, or 0 for no limit.
func lifeOf(d driver.Node) (life time.Duration) {
	if d.Life != nil {
		life = d.Life()
	}
	if d.Follows && (life == 0 || life > followTime) {
		return followTime
	}
	return life
}

package redisbackend

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend/internal/driver"
	"github.com/onelane/onelane/internal/loglimit"
)

// Config describes a Redis backend. [New] and [Pools] return one with the defaults; change a field
// and pass it to [core.New]. It implements [core.Opener].
type Config struct {
	// Clients are the go-redis clients. One redis.Client is for one Redis or Sentinel, and one
	// redis.ClusterClient for a Redis Cluster. A quorum has 3, 5 or 7 redis.Clients, one for each
	// independent master.
	Clients []redis.UniversalClient
	// Pools are redsync pools. Set either Clients or Pools.
	Pools []redsyncredis.Pool
	// NodeTimeout bounds each call to one Redis. With 0 it is 1 s on one Redis and with Pools; on a
	// quorum of clients it follows the latency that is observed. A call waits for its first
	// connection just as long, but at least 1 s. If all connections are busy, it waits until Redis
	// has been silent for just as long. Large values get more time.
	NodeTimeout time.Duration
	// NewInstallation says that the masters of this quorum never held a lock before. So they need
	// not abstain after their start. Set it for tests, and for the first start of a new quorum only.
	NewInstallation bool
	// LongestTTL is the longest TTL that a lock on this quorum may have, also by [core.WithTTL] and
	// Lock.Extend. With 0 it is 30 s. It must be the same in all processes. A master that starts has
	// no vote for one and a half times as long, and 2 s more. That is 9 s or more: docs/quorum.md has
	// the rule for values below 5 s.
	LongestTTL time.Duration
	// Replicas is how many replicas of the one Redis must confirm each lock, each renewal and each
	// seal. They confirm by WAIT, within ReplicaTimeout. With 0, no replica is asked. If too few
	// confirm, the error matches [core.ErrUnavailable] and names how many confirmed. A new lock is
	// then released at once. A renewal or Extend leaves the lock's deadline as it is. A Seal stays:
	// it may be tried again, and others may see it already. WAIT makes it unlikely that a fail-over
	// loses a lock, not impossible. See docs/guarantees.md. On a Redis Cluster, only replicas of
	// the key's shard confirm.
	Replicas int
	// ReplicaTimeout is set together with Replicas. It is at most an eighth of the Locker's TTL. If
	// the caller's context leaves less time, the time-out is three quarters of that time. While
	// replicas hang, each attempt takes that long, also on a held key. An attempt that comes behind
	// another takes twice as long. Calls that need no replicas (Release, Inspect) have connections
	// of their own and do not wait.
	ReplicaTimeout time.Duration

	driver driver.Driver // of another client library, instead of Clients and Pools
}

// New returns the backend on go-redis clients: one Redis, Sentinel or Redis Cluster, or a quorum of
// 3, 5 or 7 independent masters. The caller closes the clients, after the Locker.
func New(clients ...redis.UniversalClient) Config { return Config{Clients: clients} }

// Pools returns the backend on redsync pools: go-redis, redigo, rueidis or valkey. 3, 5 or 7 are a
// quorum. Waiters poll. Switch off the retries of the pool's own client (go-redis: MaxRetries -1).
// Pass no pool of a redis.Ring, which moves keys when a server fails: two may hold a lock then. A
// pool does not show what is behind it, so Pools cannot refuse it as New does.
func Pools(pools ...redsyncredis.Pool) Config { return Config{Pools: pools} }

// Drive returns the backend on another client library. It is for the drivers of this project, such
// as rueidisdriver.
func Drive(d driver.Driver) Config { return Config{driver: d} }

// Open implements [core.Opener]. [core.New] calls it. It does not talk to Redis.
func (c Config) Open(env core.Environment) (core.Backend, error) {
	if err := errors.Join(c.valid(), c.validReplicas(env.TTL)); err != nil {
		return nil, fmt.Errorf("redisbackend: %w", err)
	}
	env.Logger = loglimit.New(env.Logger)
	id := rand.Text()
	if all := c.cluster(env, id); all != nil {
		s := &server{id: id, router: all, sharded: c.sharded()}
		return s.observed(env, all.nodes)
	}
	nodes := c.nodes(env, id)
	if len(nodes) == 1 {
		s := &server{id: id, router: nodes[0]}
		return s.observed(env, func() []*node { return nodes })
	}
	longest := cmp.Or(c.LongestTTL, defaultLongest)
	if env.TTL > longest {
		return nil, errors.Join(fmt.Errorf("redisbackend: the Locker's TTL of %v is longer than the longest of this quorum, %v; use a shorter TTL, or set LongestTTL in all processes alike",
			env.TTL, longest), closeAll(nodes))
	}
	q := newQuorum(nodes, env, longest, c.NewInstallation)
	end, err := observe(env.Meter, func() []*node { return nodes })
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	q.end = end
	return q, nil
}

// observed makes the backend's instruments.
func (s *server) observed(env core.Environment, nodes func() []*node) (core.Backend, error) {
	end, err := observe(env.Meter, nodes)
	if err != nil {
		return nil, errors.Join(err, s.router.close())
	}
	s.end = end
	return s, nil
}

// cluster returns the Redis Cluster of the configuration, or nil.
func (c Config) cluster(env core.Environment, id string) *cluster {
	if c.driver.Cluster != nil {
		return newCluster(c.driver.Cluster, func(d driver.Node) *node { return c.openNode(d, env, id, c.sharded()) })
	}
	if len(c.Clients) == 1 {
		if client, ok := c.Clients[0].(*redis.ClusterClient); ok {
			return newClientCluster(client, func(master *redis.Client) *node { return c.openNode(newClientNode(master), env, id, c.sharded()) })
		}
	}
	return nil
}

// sharded reports whether the pub/sub of the configuration's cluster is. A client with
// ClusterSlots, such as that of redis.NewFailoverClusterClient, has servers that are no Redis Cluster.
// Other clients of them listen to the plain channel.
func (c Config) sharded() bool {
	if c.driver.Cluster != nil {
		return true
	}
	client, ok := c.Clients[0].(*redis.ClusterClient)
	return ok && client.Options().ClusterSlots == nil
}

// nodes makes the nodes of the configuration.
func (c Config) nodes(env core.Environment, id string) (nodes []*node) {
	for _, client := range c.Clients {
		nodes = append(nodes, c.openNode(newClientNode(client.(*redis.Client)), env, id, false))
	}
	for i, pool := range c.Pools {
		// The latency of a pool is not known: calls may have to connect.
		conn := &poolConn{pool: pool, name: fmt.Sprintf("pool %d", i+1)}
		n := newNode(conn, newLatency(cmp.Or(c.timeout(), longestTimeout)), env)
		n.id, n.features.none, n.stuck = id, true, &conn.stuck
		nodes = append(nodes, n)
	}
	for _, made := range c.driver.Nodes {
		nodes = append(nodes, c.openNode(made(), env, id, false))
	}
	return nodes
}

// openNode makes the node of a client library.
func (c Config) openNode(d driver.Node, env core.Environment, id string, sharded bool) *node {
	l, most := newLatency(c.timeout()), callConnections
	if c.count() > 1 {
		most = quorumConnections
	}
	n := newNode(newNodeConn(d, l, nil, most), l, env)
	n.selfTimed = true
	if c.Replicas > 0 {
		n.confirming = newNodeConn(d, l, &replicas{c.Replicas, c.ReplicaTimeout}, callConnections)
	}
	n.listen(d.Listen, id, sharded)
	return n
}

// timeout returns the limit of a call, or 0 if it follows the latency.
func (c Config) timeout() time.Duration {
	if c.NodeTimeout == 0 && c.count() == 1 {
		return defaultNodeTimeout
	}
	return c.NodeTimeout
}

// count returns how many Redis masters, or clusters, the configuration has.
func (c Config) count() int {
	n := len(c.Clients) + len(c.Pools) + len(c.driver.Nodes)
	if c.driver.Cluster != nil {
		n++
	}
	return n
}

func (c Config) valid() error {
	n := c.count()
	switch {
	case c.driver.Err != nil:
		return c.driver.Err
	case n == 0:
		return errors.New("a backend needs at least one Redis client or pool")
	case len(c.Clients) > 0 && len(c.Pools) > 0:
		return errors.New("set Clients or Pools, not both")
	case n > len(c.Clients)+len(c.Pools) && len(c.Clients)+len(c.Pools) > 0:
		return errors.New("set no Clients or Pools beside those of a driver")
	case n == 2:
		return errors.New("two Redis masters cannot outvote each other; use one, or 3, 5 or 7")
	case c.LongestTTL < 0:
		return fmt.Errorf("LongestTTL %v must not be negative", c.LongestTTL)
	case c.NodeTimeout < 0:
		return fmt.Errorf("node time-out %v must not be negative", c.NodeTimeout)
	}
	for i, p := range c.Pools {
		if p == nil {
			return fmt.Errorf("pool %d is nil", i+1)
		}
	}
	seen := make(map[string]int)
	for i, made := range c.driver.Nodes {
		if err := once(seen, i, made().Address()); err != nil {
			return err
		}
	}
	for i, client := range c.Clients {
		if v := reflect.ValueOf(client); client == nil || v.Kind() == reflect.Pointer && v.IsNil() {
			return fmt.Errorf("client %d is nil", i+1)
		}
		if _, ring := client.(*redis.Ring); ring {
			return errors.New("a redis.Ring moves a key to another master if the key's own does not answer, so that two could hold it; use one Redis, a Redis Cluster or Sentinel")
		}
		one, ok := client.(*redis.Client)
		if _, cluster := client.(*redis.ClusterClient); !ok && (!cluster || n > 1) {
			return fmt.Errorf("client %d is a %T; pass a *redis.Client for each Redis, or one *redis.ClusterClient", i+1, client)
		}
		if !ok || n < 3 || one.Options().Addr == sentinelAddr() {
			continue
		}
		if err := once(seen, i, one.Options().Addr); err != nil {
			return err
		}
	}
	return nil
}

// once returns an error if a node of a quorum has the address of an earlier one.
func once(seen map[string]int, i int, addr string) error {
	if j, again := seen[addr]; again {
		return fmt.Errorf("nodes %d and %d of the quorum are one Redis, at %s; pass each master once", j+1, i+1, addr)
	}
	seen[addr] = i
	return nil
}

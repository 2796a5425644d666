package redisbackend

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// slotsLife is how old the slots of a Redis Cluster may be before they are asked for again.
const slotsLife = 2 * time.Second

// pruneAfter is how long after a new master appeared former ones are looked for.
const pruneAfter = 5 * time.Second

// cluster routes calls to the masters of a Redis Cluster. Each shard is a node of its own, so that
// a hung one cannot touch another.
type cluster struct {
	// find returns the master that has key, and masters all of them.
	find    func(ctx context.Context, key string) (master, error)
	masters func(ctx context.Context) ([]master, error)
	open    func(master) *node
	reload  func(ctx context.Context)
	asked   driver.Conn
	name    string // in errors

	mu      sync.Mutex
	shards  map[string]*node // by address
	pruning bool             // prune is due
	closed  bool
}

// master is the master of a shard.
type master struct {
	address string
	client  *redis.Client // nil for another client library
}

func masterOf(client *redis.Client) master { return master{client.Options().Addr, client} }

// newClientCluster returns the cluster of a go-redis client.
func newClientCluster(client *redis.ClusterClient, newNode func(*redis.Client) *node) *cluster {
	asked := &askConn{cluster: client}
	var known atomic.Bool // the slots were asked for
	var asking atomic.Int64
	began := time.Now() // the wall clock may be set back
	find := func(ctx context.Context, key string) (master, error) {
		if known.Load() {
			// A master that is gone sends no MOVED, and go-redis asks once a minute. So the slots
			// are asked for in the background.
			now := int64(time.Since(began))
			if last := asking.Load(); time.Duration(now-last) > slotsLife && asking.CompareAndSwap(last, now) {
				client.ReloadState(ctx)
			}
			found, err := client.MasterForKey(ctx, key)
			if err != nil {
				return master{}, err
			}
			return masterOf(found), nil
		}
		// The first call asks the cluster for its slots. That may ignore ctx.
		ctx, cancel := context.WithTimeout(ctx, connectWait)
		defer cancel()
		v, _, err := giveUp(ctx, &asked.stuck, func() (any, error) { return client.MasterForKey(context.Background(), key) })
		if err != nil {
			return master{}, notSent(err)
		}
		known.Store(true)
		return masterOf(v.(*redis.Client)), nil
	}
	masters := func(ctx context.Context) ([]master, error) {
		ctx, cancel := context.WithTimeout(ctx, connectWait)
		defer cancel()
		v, _, err := giveUp(ctx, &asked.stuck, func() (any, error) {
			var mu sync.Mutex
			var all []master
			err := client.ForEachMaster(context.Background(), func(_ context.Context, found *redis.Client) error {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, masterOf(found))
				return nil
			})
			return all, err
		})
		if err != nil {
			return nil, notSent(err)
		}
		known.Store(true)
		return v.([]master), nil
	}
	open := func(m master) *node { return newNode(m.client) }
	return &cluster{find: find, masters: masters, open: open, reload: client.ReloadState, asked: asked,
		name: strings.Join(client.Options().Addrs, ",")}
}

// newCluster returns the cluster of another client library.
func newCluster(c driver.Cluster, newNode func(driver.Node) *node) *cluster {
	find := func(ctx context.Context, key string) (m master, err error) {
		m.address, err = c.Master(ctx, key)
		return m, err
	}
	masters := func(ctx context.Context) (all []master, err error) {
		addresses, err := c.Masters(ctx)
		for _, address := range addresses {
			all = append(all, master{address: address})
		}
		return all, err
	}
	open := func(m master) *node { return newNode(c.Node(m.address)) }
	asked := c.Asking()
	return &cluster{find: find, masters: masters, open: open, reload: c.Reload, asked: asked, name: asked.Address()}
}

// route returns the master that has the slot of key.
func (c *cluster) route(ctx context.Context, key string) (*node, error) {
	m, err := c.find(ctx, key)
	if err != nil {
		return nil, c.failed(err)
	}
	return c.shard(m), nil
}

func (c *cluster) failed(err error) error { return fmt.Errorf("redis cluster %s: %w", c.name, err) }

// nodes returns the shards that were asked so far.
func (c *cluster) nodes() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.shards))
}

// shard returns the node of a master, and makes it if the master was not asked before.
func (c *cluster) shard(m master) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.shards[m.address]; n != nil {
		return n
	}
	n := c.open(m)
	n.router, n.wakes.moves = c, true
	if c.shards == nil {
		c.shards = make(map[string]*node)
	}
	c.shards[m.address] = n
	switch {
	case c.closed:
		_ = n.close() // it still serves late releases
	case len(c.shards) > 1 && !c.pruning:
		c.pruning = true
		time.AfterFunc(pruneAfter, c.prune)
	}
	return n
}

// prune closes the nodes of former masters: their keys are elsewhere.
func (c *cluster) prune() {
	ctx, cancel := context.WithTimeout(context.Background(), connectWait)
	defer cancel()
	masters, err := c.masters(ctx)
	var former []*node
	c.mu.Lock()
	c.pruning = false
	if err == nil && !c.closed {
		for address, n := range c.shards {
			if !slices.ContainsFunc(masters, func(m master) bool { return m.address == address }) {
				former = append(former, n)
				delete(c.shards, address)
			}
		}
	}
	c.mu.Unlock()
	_ = closeAll(former)
}

// redirected follows a redirect: after MOVED the cluster's state is loaded anew, and ASK goes to
// the master that the slot is moving to.
func (c *cluster) redirected(ctx context.Context, err error) driver.Conn {
	switch {
	case hasCode(err, "ASK"):
		return c.asked
	case hasCode(err, "MOVED"):
		c.reload(ctx)
	}
	pause(ctx, jitter(movingPause))
	return nil
}

func (c *cluster) close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	return closeAll(c.nodes())
}

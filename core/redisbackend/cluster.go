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

// cluster routes calls to the masters of a Redis Cluster. Each shard is a node of its own, so that
// a hung one cannot touch another.
type cluster struct {
	// find returns the address of the master that has key, and open makes its node.
	find   func(ctx context.Context, key string) (address string, err error)
	open   func(ctx context.Context, key, address string) (*node, error)
	reload func(ctx context.Context)
	// masters returns a node for the master of each shard.
	masters func(ctx context.Context) ([]*node, error)
	asked   driver.Conn
	name    string // in errors

	mu     sync.Mutex
	shards map[string]*node // by address
	closed bool
}

// newClientCluster returns the cluster of a go-redis client.
func newClientCluster(client *redis.ClusterClient, newNode func(*redis.Client) *node) *cluster {
	asked := &askConn{cluster: client}
	var known atomic.Bool // the slots were asked for
	var asking atomic.Int64
	began := time.Now() // the wall clock may be set back
	find := func(ctx context.Context, key string) (string, error) {
		if known.Load() {
			// A master that is gone sends no MOVED, and go-redis asks once a minute. So the slots
			// are asked for in the background.
			now := int64(time.Since(began))
			if last := asking.Load(); time.Duration(now-last) > slotsLife && asking.CompareAndSwap(last, now) {
				client.ReloadState(ctx)
			}
			master, err := client.MasterForKey(ctx, key)
			if err != nil {
				return "", err
			}
			return master.Options().Addr, nil
		}
		// The first call asks the cluster for its slots. That may ignore ctx.
		ctx, cancel := context.WithTimeout(ctx, connectWait)
		defer cancel()
		v, _, err := giveUp(ctx, &asked.stuck, func() (any, error) { return client.MasterForKey(context.Background(), key) })
		if err != nil {
			return "", notSent(err)
		}
		known.Store(true)
		return v.(*redis.Client).Options().Addr, nil
	}
	open := func(ctx context.Context, key, _ string) (*node, error) {
		master, err := client.MasterForKey(ctx, key)
		if err != nil {
			return nil, err
		}
		return newNode(master), nil
	}
	masters := func(ctx context.Context) (all []*node, err error) {
		ctx, cancel := context.WithTimeout(ctx, connectWait)
		defer cancel()
		v, _, err := giveUp(ctx, &asked.stuck, func() (any, error) {
			var mu sync.Mutex
			var found []*redis.Client
			err := client.ForEachMaster(context.Background(), func(_ context.Context, master *redis.Client) error {
				mu.Lock()
				defer mu.Unlock()
				found = append(found, master)
				return nil
			})
			return found, err
		})
		if err != nil {
			return nil, notSent(err)
		}
		known.Store(true)
		for _, master := range v.([]*redis.Client) { // here, because nobody would close those of a call that was given up
			all = append(all, newNode(master))
		}
		return all, nil
	}
	return &cluster{find: find, open: open, reload: client.ReloadState, masters: masters, asked: asked,
		name: strings.Join(client.Options().Addrs, ",")}
}

// newCluster returns the cluster of another client library.
func newCluster(c driver.Cluster, newNode func(driver.Node) *node) *cluster {
	open := func(_ context.Context, _, address string) (*node, error) { return newNode(c.Node(address)), nil }
	masters := func(ctx context.Context) (all []*node, err error) {
		addresses, err := c.Masters(ctx)
		for _, address := range addresses {
			all = append(all, newNode(c.Node(address)))
		}
		return all, err
	}
	asked := c.Asking()
	return &cluster{find: c.Master, open: open, reload: c.Reload, masters: masters, asked: asked, name: asked.Address()}
}

// route returns the master that has the slot of key.
func (c *cluster) route(ctx context.Context, key string) (*node, error) {
	address, err := c.find(ctx, key)
	if err != nil {
		return nil, c.failed(err)
	}
	c.mu.Lock()
	n := c.shards[address]
	c.mu.Unlock()
	if n != nil {
		return n, nil
	}
	if n, err = c.open(ctx, key, address); err != nil {
		return nil, c.failed(err)
	}
	return c.add(n), nil
}

func (c *cluster) failed(err error) error { return fmt.Errorf("redis cluster %s: %w", c.name, err) }

// nodes returns the shards that were asked so far.
func (c *cluster) nodes() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.shards))
}

// add keeps a new shard, unless it is known meanwhile.
func (c *cluster) add(n *node) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	address := n.conn.Address()
	if known := c.shards[address]; known != nil {
		_ = n.close()
		return known
	}
	n.router = c
	if c.shards == nil {
		c.shards = make(map[string]*node)
	}
	c.shards[address] = n
	if c.closed {
		_ = n.close() // it still serves late releases
	}
	return n
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

package rueidisdriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

const (
	slots = 1 << 14
	// A map of the slots that is older than mapLife is loaded anew in the background. One is not
	// loaded again within mapPause.
	mapLife  = 2 * time.Second
	mapPause = 100 * time.Millisecond
	// mapWait is how long loading a map may take.
	mapWait = 2 * time.Second
	// askWait is how long a call that follows ASK may take after it was given up.
	askWait = 10 * time.Second
)

// cluster is a Redis Cluster. Calls go to the master of their key over connections of its own, so
// that a shard that hangs does not touch another. Rueidis has no map of the slots to look at.
type cluster struct {
	client rueidis.Client
	known  atomic.Pointer[slotMap]

	mu      sync.Mutex
	loading chan struct{} // closed when the map being loaded is there, or has failed
	failed  error
}

// slotMap has the address of each slot's master.
type slotMap struct {
	addresses []string
	masters   [slots]uint16 // 0, or one more than an index of addresses
	loaded    time.Time
}

// master returns the address of a key's master, or "".
func (m *slotMap) master(key string) string {
	if i := m.masters[slot(key)]; i > 0 {
		return m.addresses[i-1]
	}
	return ""
}

func newCluster(client rueidis.Client) *cluster { return &cluster{client: client} }

// Master implements driver.Cluster.
func (c *cluster) Master(ctx context.Context, key string) (string, error) {
	m := c.known.Load()
	switch {
	case m == nil:
		if err := c.load(ctx, key); err != nil {
			return "", err
		}
		m = c.known.Load()
	case time.Since(m.loaded) > mapLife:
		c.begin(key)
	}
	address := m.master(key)
	if address == "" {
		c.begin(key)
		return "", driver.NotSent(errors.New("rueidisdriver: no master has the slot of the key"))
	}
	return address, nil
}

// Masters implements driver.Cluster.
func (c *cluster) Masters(ctx context.Context) ([]string, error) {
	m := c.known.Load()
	switch {
	case m == nil:
		if err := c.load(ctx, ""); err != nil {
			return nil, err
		}
		m = c.known.Load()
	case time.Since(m.loaded) > mapLife: // the process may do nothing but Ping
		c.begin("")
	}
	return m.addresses, nil
}

// Node implements driver.Cluster.
func (c *cluster) Node(address string) driver.Node {
	return openNode(false, func() string { return address }, func() (rueidis.Client, error) {
		node := c.client.Nodes()[address]
		if node == nil {
			return nil, fmt.Errorf("rueidisdriver: the client does not know the master at %s yet", address)
		}
		return node, nil
	})
}

// Reload implements driver.Cluster.
func (c *cluster) Reload(ctx context.Context) { _ = c.load(ctx, "") }

// Asking implements driver.Cluster. The cluster's client follows ASK.
func (c *cluster) Asking() driver.Conn { return asking{c.client} }

// load loads a map and waits for it.
func (c *cluster) load(ctx context.Context, key string) error {
	loading := c.begin(key)
	if loading == nil {
		return nil
	}
	select {
	case <-loading:
	case <-ctx.Done():
		return driver.NotSent(ctx.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known.Load() == nil {
		return driver.NotSent(c.failed)
	}
	return nil
}

// begin begins to load a map, unless the last one is new. It returns nil then.
func (c *cluster) begin(key string) (loading <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.known.Load(); m != nil && time.Since(m.loaded) < mapPause {
		return nil
	}
	if c.loading == nil {
		c.loading = make(chan struct{})
		go c.fetch(c.loading, key)
	}
	return c.loading
}

// fetch loads a map.
func (c *cluster) fetch(loading chan struct{}, key string) {
	ctx, cancel := context.WithTimeout(context.Background(), mapWait)
	defer cancel()
	m, err := c.ask(ctx)
	if err == nil && key == "" {
		key = c.stranger(m)
	}
	if err == nil && key != "" {
		if _, there := c.client.Nodes()[m.master(key)]; !there {
			// A command for the key makes the client look where the key is.
			_ = c.client.Do(ctx, c.client.B().Pttl().Key(key).Build()).Error()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.known.Store(m)
	} else if old := c.known.Load(); old != nil {
		again := *old
		again.loaded = time.Now() // not at once again
		c.known.Store(&again)
	}
	c.failed, c.loading = err, nil
	close(loading)
}

// stranger returns a key of a master that the client does not know yet, or "". It begins with
// core's default prefix, because an ACL may forbid other keys. If the ACL forbids this one, because
// the Locker has another prefix, the client learns of the master by the next lock.
func (c *cluster) stranger(m *slotMap) string {
	nodes := c.client.Nodes()
	for _, address := range m.addresses {
		for i := 0; nodes[address] == nil && i < slots; i++ {
			if key := "onelane:{" + strconv.Itoa(i) + "}"; m.master(key) == address {
				return key
			}
		}
	}
	return ""
}

// ask asks the cluster for its slots.
func (c *cluster) ask(ctx context.Context) (*slotMap, error) {
	ranges, err := c.client.Do(ctx, c.client.B().ClusterSlots().Build()).ToArray()
	if err != nil {
		return nil, fmt.Errorf("rueidisdriver: CLUSTER SLOTS: %w", err)
	}
	m := &slotMap{loaded: time.Now()}
	nodes := c.client.Nodes()
	for i := range ranges {
		first, last, address, err := slotRange(&ranges[i], nodes)
		if err != nil {
			return nil, err
		}
		i := slices.Index(m.addresses, address)
		if i < 0 { // its first range
			i = len(m.addresses)
			m.addresses = append(m.addresses, address)
		}
		for s := first; s <= last; s++ {
			m.masters[s] = uint16(i + 1)
		}
	}
	return m, nil
}

// slotRange reads one element of the answer to CLUSTER SLOTS: first, last, master, replicas.
func slotRange(r *rueidis.RedisMessage, nodes map[string]rueidis.Client) (first, last int64, address string, err error) {
	fields, _ := r.ToArray()
	if len(fields) < 3 {
		return 0, 0, "", errSlots
	}
	first, err1 := fields[0].AsInt64()
	last, err2 := fields[1].AsInt64()
	master, err3 := fields[2].ToArray()
	if errors.Join(err1, err2, err3) != nil || len(master) < 2 || first < 0 || last >= slots {
		return 0, 0, "", errSlots
	}
	host, _ := master[0].ToString()
	port, err := master[1].AsInt64()
	if err != nil {
		return 0, 0, "", errSlots
	}
	address = net.JoinHostPort(host, strconv.FormatInt(port, 10))
	if host == "" || host == "?" { // the server that was asked does not know its own
		for known := range nodes {
			if _, p, _ := net.SplitHostPort(known); p == strconv.FormatInt(port, 10) {
				address = known
			}
		}
	}
	return first, last, address, nil
}

var errSlots = errors.New("rueidisdriver: the answer to CLUSTER SLOTS is not a map of slots")

// asking sends commands through the client of a cluster.
type asking struct{ client rueidis.Client }

// Do implements driver.Conn. The client may connect first, and ignores ctx then: a call that is
// given up goes on with copies.
func (a asking) Do(ctx context.Context, commands ...*driver.Command) (<-chan struct{}, error) {
	if end, ok := ctx.Deadline(); ctx.Err() != nil || ok && !time.Now().Before(end) {
		return nil, driver.NotSent(cmp.Or(ctx.Err(), context.DeadlineExceeded))
	}
	copies, over := make([]driver.Command, len(commands)), make(chan struct{})
	for i, c := range commands {
		copies[i] = *c
	}
	var err error
	go func() {
		defer close(over)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askWait)
		defer cancel()
		for i := range copies {
			if err = a.ask(ctx, &copies[i]); err != nil {
				return
			}
		}
	}()
	select {
	case <-over:
	case <-ctx.Done():
		return over, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	for i, c := range commands {
		c.Value, c.Err = copies[i].Value, copies[i].Err
	}
	return nil, commands[0].Err
}

func (a asking) ask(ctx context.Context, c *driver.Command) error {
	words, at := c.All(), 1
	if c.Script != nil {
		at = 3
	}
	b := a.client.B().Arbitrary(words[:at]...).Keys(words[at]).Args(words[at+1:]...)
	return take(c, a.client.Do(ctx, b.Build()))
}

func (a asking) Address() string { return "cluster" }
func (a asking) Close() error    { return nil }

// slot returns the slot of a key.
func slot(key string) uint16 {
	c := rueidis.Completed{}.SetSlot(key)
	return c.Slot()
}

package core

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// wakeJitter is how long a waiter on a quorum waits, on average, when it is told of a release: the other nodes are being told of it,
// and who asks at the same time as another may get a part of the votes each.
const wakeJitter = time.Millisecond

// wokenRedis is a redisBackend whose client has pub/sub.
type wokenRedis struct {
	*redisBackend
	cluster *redis.ClusterClient // nil for another client
	client  redis.UniversalClient
	shards  *shards
}

func (b *wokenRedis) open(c *config) (Backend, error) {
	opened, err := b.redisBackend.open(c)
	if err != nil {
		return nil, err
	}
	return &wokenRedis{opened.(*redisBackend), b.cluster, b.client, newShards()}, nil
}

// Watch implements Watcher.
func (b *wokenRedis) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	client, name := b.client, b.channel(key)
	if b.cluster != nil {
		master, err := b.cluster.MasterForKey(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		client = master
	}
	changed := make(chan struct{}, 1)
	stop, err := b.shards.of(client, b.cluster != nil).watch(ctx, name, changed)
	return changed, stop, err
}

// Close ends the subscriptions too.
func (b *wokenRedis) Close() error { return errors.Join(b.shards.close(), b.redisBackend.Close()) }

// shards are the connections for wake-ups, one for each Redis.
type shards struct {
	mu     sync.Mutex
	wakes  map[redis.UniversalClient]*wakes
	closed bool
}

func newShards() *shards { return &shards{wakes: make(map[redis.UniversalClient]*wakes)} }

func (s *shards) of(client redis.UniversalClient, sharded bool) *wakes {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.wakes[client]
	if w == nil {
		for c, old := range s.wakes { // those of masters that are no more
			if old.unused() {
				delete(s.wakes, c)
			}
		}
		w = newWakes(client)
		w.sharded, w.closed = sharded, s.closed
		s.wakes[client] = w
	}
	return w
}

func (s *shards) close() error {
	s.mu.Lock()
	s.closed = true
	all := make([]*wakes, 0, len(s.wakes))
	for _, w := range s.wakes {
		all = append(all, w)
	}
	s.mu.Unlock()
	var errs []error
	for _, w := range all {
		errs = append(errs, w.close())
	}
	return errors.Join(errs...)
}

// wokenQuorum is a quorum whose clients have pub/sub.
type wokenQuorum struct {
	*quorum
	clients []redis.UniversalClient
	wakes   []*wakes
}

func newWokenQuorum(q *quorum, clients []redis.UniversalClient) *wokenQuorum {
	woken := &wokenQuorum{quorum: q, clients: clients}
	for _, client := range clients {
		woken.wakes = append(woken.wakes, newWakes(client))
	}
	return woken
}

func (q *wokenQuorum) open(c *config) (Backend, error) {
	opened, err := q.quorum.open(c)
	if err != nil {
		return nil, err
	}
	return newWokenQuorum(opened.(*quorum), q.clients), nil
}

// Close ends the subscriptions too.
func (q *wokenQuorum) Close() error {
	var errs []error
	for _, w := range q.wakes {
		errs = append(errs, w.close())
	}
	return errors.Join(append(errs, q.quorum.Close())...)
}

var hashSeed = maphash.MakeSeed()

// listened are the nodes on which a waiter for key subscribes: so many that every majority that may hold the key has one of them,
// whichever nodes do not answer; which ones differs from key to key, and those that are left out come last.
func (q *wokenQuorum) listened(key string) []int {
	n, first := len(q.nodes), int(maphash.String(hashSeed, key)%uint64(len(q.nodes)))
	var nodes, out []int
	for i := range n {
		if i = (first + i) % n; q.nodes[i].breaker.isOut() {
			out = append(out, i)
		} else {
			nodes = append(nodes, i)
		}
	}
	return append(nodes, out...)[:n-q.majority()+1]
}

// Watch implements Watcher. It returns when the first node has confirmed; each later confirmation counts as a change.
func (q *wokenQuorum) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, q.nodes[0].timeout)
	type subscription struct {
		stop func()
		err  error
	}
	nodes, told := q.listened(key), make(chan struct{}, 1)
	answers := make(chan subscription, len(nodes))
	for _, i := range nodes {
		go func() {
			stop, err := q.wakes[i].watch(ctx, q.nodes[i].channel(key), told)
			answers <- subscription{stop, err}
		}()
	}
	var stops []func()
	var errs []error
	for len(stops) == 0 && len(errs) < len(nodes) {
		if a := <-answers; a.err == nil {
			stops = append(stops, a.stop)
		} else {
			errs = append(errs, a.err)
		}
	}
	if len(stops) == 0 {
		cancel()
		return nil, nil, errors.Join(errs...)
	}
	changed, over := make(chan struct{}, 1), make(chan struct{})
	go func() {
		left := len(nodes) - len(stops) - len(errs)
		gather(told, changed, over, q.nodes[0].jitter)
		cancel()
		for range left {
			if a := <-answers; a.err == nil {
				a.stop()
			}
		}
		for _, stop := range stops {
			stop()
		}
	}()
	return changed, sync.OnceFunc(func() { close(over) }), nil
}

// gather makes one signal of those that come within a moment, until it is over.
func gather(told, changed, over chan struct{}, jitter func(time.Duration) time.Duration) {
	for {
		select {
		case <-told:
		case <-over:
			return
		}
		select {
		case <-time.After(jitter(wakeJitter)):
		case <-over:
			return
		}
		select {
		case <-told:
		default:
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

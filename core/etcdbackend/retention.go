package etcdbackend

import (
	"context"
	"math/bits"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// retention grants the etcd leases that remove keys which nobody removes. Keys that are written at
// about the same time and last about as long share one, so that most writes ask for none. An etcd
// lease is never renewed and never revoked.
type retention struct {
	mu      sync.Mutex
	classes map[int64]*class // by seconds; there are at most a few hundred
}

// writesPerLease bounds the keys of an etcd lease. If the client has a user, etcd checks the
// permission on each of these keys at every write with the lease. It also removes them in one step.
const writesPerLease = 256

// class is the newest etcd lease for keys that last up to a given time in seconds.
type class struct {
	turn   chan struct{} // has one element while nobody uses what follows
	id     clientv3.LeaseID
	sent   time.Time // before the request for the lease
	writes int       // that got the lease
}

// attached is an etcd lease for one write.
type attached struct {
	class *class
	id    clientv3.LeaseID
	sent  time.Time     // before the request for the lease
	ttl   time.Duration // of the lease
}

// ago returns how long ago t may have been for etcd. On a suspended machine the monotonic clock
// stops, and the wall clock goes on.
func ago(t, now time.Time) time.Duration { return max(now.Sub(t), now.Round(0).Sub(t.Round(0))) }

// lifetime rounds d up to whole seconds, by at most an eighth. For window seconds, further keys
// share an etcd lease for d.
func lifetime(d time.Duration) (seconds, window int64) {
	seconds = max(1, int64((d+time.Second-1)/time.Second))
	if shift := bits.Len64(uint64(seconds)) - 4; shift > 0 {
		seconds = ((seconds-1)>>shift + 1) << shift
	}
	return seconds, (seconds + 7) / 8
}

// sendGrace is how many seconds may pass before a write is sent with its etcd lease. That is more
// than a request for the lease may take.
func (b *backend) sendGrace() int64 { return 1 + int64(b.timeout/tries/time.Second) }

// attach returns an etcd lease for a write that says something for d.
func (b *backend) attach(ctx context.Context, key string, d time.Duration) (attached, error) {
	seconds, window := lifetime(d)
	c := b.retention.class(seconds)
	select {
	case <-c.turn:
	case <-ctx.Done():
		return attached{}, unavailable(key, ctx.Err())
	}
	defer func() { c.turn <- struct{}{} }()
	ttl := seconds + window + b.sendGrace()
	if c.id == 0 || c.writes == writesPerLease || b.ago(c.sent, time.Now()) > time.Duration(window)*time.Second {
		err := b.retry(ctx, key, func(ctx context.Context) error {
			sent := time.Now()
			resp, err := b.client.Grant(ctx, ttl)
			if err == nil {
				c.id, c.sent, c.writes = resp.ID, sent, 0
			}
			return err
		})
		if err != nil {
			return attached{}, err
		}
	}
	c.writes++
	return attached{c, c.id, c.sent, time.Duration(ttl) * time.Second}, nil
}

func (r *retention) class(seconds int64) *class {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.classes[seconds]
	if c == nil {
		c = &class{turn: make(chan struct{}, 1)}
		c.turn <- struct{}{}
		if r.classes == nil {
			r.classes = make(map[int64]*class)
		}
		r.classes[seconds] = c
	}
	return c
}

// drop forgets an etcd lease that etcd does not know: somebody revoked it.
func (a attached) drop(ctx context.Context) {
	select {
	case <-a.class.turn:
		if a.class.id == a.id {
			a.class.id = 0
		}
		a.class.turn <- struct{}{}
	case <-ctx.Done():
	}
}

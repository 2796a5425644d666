package etcdbackend

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/loglimit"
)

const (
	maxCleaning = 1 << 14 // clean-ups that wait
	cleaners    = 4       // while there is something to clean up
	// markKept is how long a voided attempt stays void. A request may be under way in a member that
	// hangs, for as long as it hangs.
	markKept = 10 * time.Minute
	// cleanUpFor is for how long a clean-up is tried, in addition to the lease.
	cleanUpFor       = 10 * time.Minute
	firstCleanUpWait = 20 * time.Millisecond
	lastCleanUpWait  = time.Second
)

// voidMark is the key that says that an attempt was given up: each write of an attempt needs that
// there is none.
func voidMark(key, attempt string) string { return key + "\x00" + attempt }

// cleaning is what attempts of unknown outcome may have left behind.
type cleaning struct {
	mu      sync.Mutex
	waiting []cleanUp
	working sync.WaitGroup
	workers int
	closed  bool
}

type cleanUp struct {
	request core.Request
	until   time.Time
}

// cleanUp frees, in the background, what an attempt may hold that failed, and keeps a request that
// is still under way from holding it later.
func (b *backend) cleanUp(q core.Request) {
	c := &b.cleaning
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if len(c.waiting) >= maxCleaning {
		loglimit.Later(b.logger, slog.LevelWarn,
			"etcdbackend: too many clean-ups wait, so that keys of failed attempts may stay held until their leases end; look at etcd",
			"waiting", len(c.waiting), "key", q.Key)
		return
	}
	c.waiting = append(c.waiting, cleanUp{q, time.Now().Add(q.TTL + cleanUpFor)})
	if c.workers < cleaners {
		c.workers++
		c.working.Go(b.cleanAll)
	}
}

// next takes the oldest clean-up, or ends a worker.
func (c *cleaning) next(over bool) (u cleanUp, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 || over {
		c.workers--
		c.waiting = nil // no room is kept for them
		return u, false
	}
	u, c.waiting = c.waiting[0], c.waiting[1:]
	return u, true
}

func (c *cleaning) putBack(u cleanUp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, u)
}

// cleanAll works until there is nothing to clean up.
func (b *backend) cleanAll() {
	wait := firstCleanUpWait
	for {
		u, more := b.cleaning.next(b.open.Err() != nil)
		if !more {
			return
		}
		ctx, cancel := b.bound(b.open)
		err := b.void(ctx, u.request)
		cancel()
		if err == nil {
			wait = firstCleanUpWait
			continue
		}
		if time.Now().Before(u.until) {
			b.cleaning.putBack(u)
		} else {
			loglimit.Later(b.logger, slog.LevelWarn,
				"etcdbackend: clean-up given up, so that the key of a failed attempt may stay held until its lease ends; look at etcd",
				"key", u.request.Key, "error", err)
		}
		select {
		case <-time.After(wait):
		case <-b.open.Done():
		}
		wait = min(2*wait, lastCleanUpWait)
	}
}

// void marks an attempt as given up, and then frees the key if the attempt has it. An orphan that
// the attempt adopted is restored: nobody has looked after it.
func (b *backend) void(ctx context.Context, q core.Request) error {
	mark := voidMark(q.Key, q.Owner)
	lease, err := b.attach(ctx, q.Key, markKept)
	if err != nil {
		return err
	}
	var resp *clientv3.TxnResponse
	err = b.retry(ctx, q.Key, func(ctx context.Context) (err error) {
		put := clientv3.OpPut(mark, "", clientv3.WithLease(lease.id))
		resp, err = b.client.Txn(ctx).Then(put, clientv3.OpGet(q.Key)).Commit()
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		lease.drop(ctx)
	}
	if err != nil {
		return err
	}
	e, err := b.entry(ctx, q.Key, resp.Responses[1].GetResponseRange().Kvs, lazy)
	if err != nil {
		return err
	}
	_, _, err = b.change(ctx, e, "", func(e entry) (step, error) {
		switch s, _ := e.status(); {
		case e.revision == 0 || e.Owner != q.Owner || s == core.Sealed:
			return step{}, nil
		case e.Adopted != "": // also if the lease has ended meanwhile
			r := record{State: stateHeld, Owner: e.Adopted, Orphan: e.AdoptedFor, Token: e.token()}
			return step{write: &r}, nil
		}
		return step{delete: true}, nil
	})
	return err
}

// close takes no more clean-ups and returns when the workers have ended.
func (c *cleaning) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.working.Wait()
}

package etcdbackend

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/cleanup"
)

const (
	// markKept is how long a voided attempt stays void. A request may be under way in a member that
	// hangs, for as long as it hangs.
	markKept = 10 * time.Minute
	// cleanUpFor is for how long a clean-up is tried, in addition to the lease. It is tried longer if
	// the attempt may leave an orphan that stays longer.
	cleanUpFor = 10 * time.Minute
)

// voidMark is the key that says that an attempt was given up: each write of an attempt needs that
// there is none.
func voidMark(key, attempt string) string { return key + "\x00" + attempt }

func newCleaning(logger *slog.Logger) *cleanup.Queue {
	return cleanup.NewQueue(cleanup.Config{
		Logger: func() *slog.Logger { return logger },
		Once:   true, // a void attempt stays void
	},
		"etcdbackend: too many clean-ups wait, so that keys of failed attempts may stay held until their leases end; look at etcd",
		"etcdbackend: clean-up given up, so that the key of a failed attempt may stay held until its lease ends; look at etcd")
}

// cleanUp frees, in the background, what an attempt may hold that failed, and keeps a request that
// is still under way from holding it later.
func (b *backend) cleanUp(q core.Request) {
	b.cleaning.Add(q.Key, q.TTL+max(q.Orphan, cleanUpFor), func(ctx context.Context) error {
		ctx, cancel := b.bound(ctx)
		defer cancel()
		return b.void(ctx, q)
	})
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
	if errors.Is(err, core.ErrInvalidKey) {
		return nil // the attempt is void, and another program has written the key
	}
	if err != nil {
		return err
	}
	_, _, err = b.change(ctx, e, "", func(e entry) (step, error) {
		switch s, _ := e.status(); {
		case e.revision == 0 || e.Owner != q.Owner || s == core.Sealed:
			return step{}, nil
		case e.Adopted != "": // even if the lease has ended meanwhile
			r := record{State: stateHeld, Owner: e.Adopted, Orphan: e.AdoptedFor, Token: e.token()}
			return step{write: &r}, nil
		}
		return step{delete: true}, nil
	})
	return err
}

package etcdbackend

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/internal/leases"
	"github.com/onelane/onelane/internal/ownertext"
)

// changeTries is how often a change is decided anew because others were faster.
const changeTries = 8

// step is what a verb decides to do with a key: write a record, delete the key, or nothing.
type step struct {
	write  *record
	delete bool
}

// errOvertaken means that others change a key faster than this process can decide.
var errOvertaken = errors.New("etcdbackend: other processes change the key all the time; try again")

// change decides what to do with a key. It begins with e, the key as it was last known, and takes
// the step if the key is still so. Otherwise it decides anew. It returns the key as it is after a
// write, and the time at which the write was sent. If attempt is not empty, cleanUp can void it.
func (b *backend) change(
	ctx context.Context, e entry, attempt string, decide func(entry) (step, error),
) (changed entry, sent time.Time, err error) {
	for range changeTries {
		s, err := decide(e)
		if err != nil || s.write == nil && !s.delete {
			return e, time.Time{}, err
		}
		next, sent, done, err := b.apply(ctx, e, attempt, s)
		if err != nil || done {
			return next, sent, err
		}
		e = next
	}
	return e, time.Time{}, unavailable(e.key, errOvertaken)
}

// apply takes a step if the key is as e says, and returns the key as it is after that. If attempt
// is not empty, the step also needs that nobody has voided the attempt, and apply sends the request
// only once.
func (b *backend) apply(
	ctx context.Context, e entry, attempt string, s step,
) (next entry, sent time.Time, done bool, err error) {
	unchanged := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(e.key), "=", e.revision)}
	send := b.retry
	if attempt != "" {
		mark := clientv3.Version(voidMark(e.key, attempt))
		unchanged = append(unchanged, clientv3.Compare(mark, "=", 0))
		send = b.sendOnce
	}
	for {
		op := clientv3.OpDelete(e.key)
		var lease attached
		if s.write != nil {
			if op, lease, sent, err = b.put(ctx, e.key, s.write); err != nil {
				return e, sent, false, err
			}
		}
		var resp *clientv3.TxnResponse
		sends := 0
		err = send(ctx, e.key, func(ctx context.Context) (err error) {
			sends++
			resp, err = b.client.Txn(ctx).If(unchanged...).Then(op).Else(clientv3.OpGet(e.key)).Commit()
			return err
		})
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			lease.drop(ctx)
			continue
		case err != nil:
			return e, sent, false, err
		case !resp.Succeeded:
			kvs := resp.Responses[0].GetResponseRange().Kvs
			if attempt != "" && revision(kvs) == e.revision { // so the mark is there
				return e, sent, false, unavailable(e.key, errors.New("etcdbackend: this attempt was given up before its answer came; try again"))
			}
			next, err = b.entry(ctx, e.key, kvs, lazy)
			next.repeated = sends > 1
			return next, sent, false, err
		case s.delete:
			b.sightings.Forget(e.key)
			return entry{key: e.key}, sent, true, nil
		}
		next = entry{record: *s.write, key: e.key, revision: resp.Header.Revision}
		next.since, _, _ = b.sightings.See(e.key, next.revision, time.Now())
		return next, sent, true, nil
	}
}

// put returns the operation that writes a record, its etcd lease, and the time from which the
// record counts.
func (b *backend) put(
	ctx context.Context, key string, r *record,
) (op clientv3.Op, lease attached, sent time.Time, err error) {
	for {
		if lease, err = b.attach(ctx, key, r.lasts()); err != nil {
			return op, lease, sent, err
		}
		sent = time.Now()
		age := b.ago(lease.sent, sent)
		if r.Lag = ownertext.Millis(age); age+r.lasts() < lease.ttl { // the process may have been stopped
			break
		}
	}
	text, err := r.encode()
	return clientv3.OpPut(key, text, clientv3.WithLease(lease.id)), lease, sent, err
}

// sendOnce is retry without repeating.
func (b *backend) sendOnce(ctx context.Context, key string, request func(context.Context) error) error {
	one, cancel := b.oneTry(ctx)
	defer cancel()
	if err := request(one); err != nil {
		return b.failed(ctx, key, err)
	}
	return nil
}

// read reads a key.
func (b *backend) read(ctx context.Context, key string, how read) (e entry, err error) {
	var resp *clientv3.GetResponse
	err = b.retry(ctx, key, func(ctx context.Context) (err error) {
		resp, err = b.client.Get(ctx, key)
		return err
	})
	if err != nil {
		return e, err
	}
	return b.entry(ctx, key, resp.Kvs, how)
}

// lost returns the error for a lease that no longer has its key.
func (e entry) lost() error {
	s, _ := e.status()
	return leases.Lost(s, e.Owner)
}

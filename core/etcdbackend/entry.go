package etcdbackend

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
)

// entry is a key as a linearizable read found it, or as this process wrote it.
type entry struct {
	record
	key string
	// revision is that of the key's last write, or 0 if there is no such key.
	revision int64
	// The write was sent at the time since or before.
	since time.Time
	// repeated means that an earlier try of the same step may have made the key so.
	repeated bool
}

func (e entry) status() (core.Status, time.Duration) {
	if e.revision == 0 {
		return core.Free, 0
	}
	return e.record.status(time.Since(e.since))
}

// token returns the first token of the lease, or that of the seal.
func (e entry) token() uint64 {
	if e.Token == 0 && e.State == stateHeld {
		return uint64(e.revision) * tokensPerLease
	}
	return e.Token
}

// orphaned returns when the lease of an orphan ended.
func (e entry) orphaned() time.Time { return e.since.Add(duration(e.TTL)) }

// read is how a key is read.
type read int

const (
	// exact asks etcd for the age of a key that this process sees for the first time. lazy does so
	// only if the key may be an orphan.
	exact read = 1 << iota
	// again is the second try after an answer that came late.
	again
	lazy read = 0
)

// entry makes an entry of what etcd answered just now.
func (b *backend) entry(
	ctx context.Context, key string, kvs []*mvccpb.KeyValue, how read,
) (entry, error) {
	e := entry{key: key}
	if len(kvs) == 0 {
		return e, nil
	}
	kv := kvs[0]
	var err error
	if e.record, err = decode(key, kv.Value); err != nil {
		return e, err
	}
	e.revision = kv.ModRevision
	since, first, late := b.sightings.See(key, kv.ModRevision, time.Now())
	if late && how&again == 0 {
		return b.read(ctx, key, how|again)
	}
	if first && kv.Lease != 0 && (how&exact != 0 || e.Orphan > 0) {
		age, found, err := b.age(ctx, key, clientv3.LeaseID(kv.Lease), duration(e.Lag))
		if err != nil {
			b.sightings.Undated(key, kv.ModRevision)
			return e, err
		}
		if !found { // and so is the key, or a member that lags behind has answered
			return b.read(ctx, key, how)
		}
		since = b.sightings.Backdate(key, kv.ModRevision, time.Now().Add(-age))
	}
	e.since = since
	return e, nil
}

// revision returns the revision of a key's last write, or 0 if there is no such key.
func revision(kvs []*mvccpb.KeyValue) int64 {
	if len(kvs) == 0 {
		return 0
	}
	return kvs[0].ModRevision
}

// age returns how long, at least, a key has been as it is. Its etcd lease is never renewed, so the
// lease's age is certain. The write was sent when the lease was at most lag old. etcd counts in
// whole seconds.
//
// A member that has been a leader answers what it knows, without asking the others. So if it does
// not find a lease, the lease may still exist.
func (b *backend) age(
	ctx context.Context, key string, id clientv3.LeaseID, lag time.Duration,
) (age time.Duration, found bool, err error) {
	err = b.retry(ctx, key, func(ctx context.Context) error {
		resp, err := b.client.TimeToLive(ctx, id)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound), err == nil && resp.TTL < 0:
			return nil
		case err != nil:
			return err
		}
		found = true
		age = max(0, time.Duration(resp.GrantedTTL-resp.TTL-1)*time.Second-lag)
		return nil
	})
	return age, found, err
}

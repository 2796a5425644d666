package etcdbackend

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Watch implements core.Backend. The client sends all watches over one stream. A member that is cut
// off from the others ends its watches.
func (b *backend) Watch(ctx context.Context, key string) (changed <-chan struct{}, stop func(), err error) {
	if ctx.Err() != nil {
		return nil, func() {}, unavailable(key, ctx.Err())
	}
	own, cancel := context.WithCancel(clientv3.WithRequireLeader(b.open))
	late := time.AfterFunc(b.timeout, cancel)
	ended := context.AfterFunc(ctx, cancel)
	events := b.client.Watch(own, key) // returns when etcd has confirmed it, or own ended
	late.Stop()
	ended()
	if own.Err() != nil {
		cancel()
		return nil, func() {}, b.failed(ctx, key, context.DeadlineExceeded)
	}
	signals := make(chan struct{}, 1)
	b.watches.Go(func() {
		defer cancel()
		defer close(signals)
		for answer := range events {
			if answer.Err() != nil {
				return
			}
			if b.mayBeFree(key, answer.Events) {
				select {
				case signals <- struct{}{}:
				default:
				}
			}
		}
	})
	return signals, cancel, nil
}

// mayBeFree reports whether a waiter should look at the key: it was deleted, sealed or orphaned. A
// renewal is only noted: the waiter's clock begins anew.
func (b *backend) mayBeFree(key string, events []*clientv3.Event) bool {
	look := false
	for _, event := range events {
		if event.Type == mvccpb.DELETE {
			look = true
			continue
		}
		b.sightings.see(key, event.Kv.ModRevision, time.Now())
		r, err := decode(key, event.Kv.Value)
		look = look || err != nil || r.State != stateHeld || r.TTL == 0
	}
	return look
}

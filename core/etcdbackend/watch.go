package etcdbackend

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// longestCreation bounds how long a watch that nobody waits for any more may take to be created.
const longestCreation = time.Minute

// Watch implements core.Backend. The client sends all watches over one stream. A member that is cut
// off from the others ends its watches.
func (b *backend) Watch(
	ctx context.Context, key string,
) (changed <-chan struct{}, stop func(), err error) {
	ctx, done := b.bound(ctx)
	defer done()
	if ctx.Err() != nil {
		return nil, func() {}, b.failed(ctx, key, ctx.Err())
	}
	own, cancel := context.WithCancel(clientv3.WithRequireLeader(b.open))
	created := make(chan clientv3.WatchChan)
	b.watches.Go(func() {
		late := time.AfterFunc(longestCreation, cancel)
		events := b.client.Watch(own, key) // returns when etcd has confirmed it, or own ended
		late.Stop()
		// If a watch is canceled while it is created, the client forgets to cancel it at the
		// server. So own is canceled only now, if the caller has gone.
		select {
		case created <- events:
		case <-ctx.Done():
			cancel()
		}
	})
	select {
	case events := <-created:
		signals := make(chan struct{}, 1)
		b.watches.Go(func() {
			defer cancel()
			b.forward(key, events, signals)
		})
		return signals, cancel, nil
	case <-ctx.Done():
		return nil, func() {}, b.failed(ctx, key, ctx.Err())
	}
}

// forward signals until the watch ends.
func (b *backend) forward(key string, events clientv3.WatchChan, signals chan<- struct{}) {
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
		b.sightings.See(key, event.Kv.ModRevision, time.Now())
		r, err := decode(key, event.Kv.Value)
		look = look || err != nil || r.State != stateHeld || r.TTL == 0
	}
	return look
}

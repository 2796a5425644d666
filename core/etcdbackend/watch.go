package etcdbackend

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// longestCreation bounds how long a watch that nobody waits for any more may take to be created.
const longestCreation = time.Minute

var errClosed = errors.New("etcdbackend: the backend is closed")

// Watch implements core.Backend. The client sends all watches over one stream, until etcd ends one
// of them. A member that is cut off from the others ends its watches.
func (b *backend) Watch(
	ctx context.Context, key string,
) (changed <-chan struct{}, stop func(), err error) {
	ctx, done := b.oneTry(ctx) // the caller asks for the key by itself if there is no watch
	defer done()
	if ctx.Err() != nil {
		return nil, func() {}, b.failed(ctx, key, ctx.Err())
	}
	stream := b.stream.Load()
	own, cancel := context.WithCancel(metadata.AppendToOutgoingContext(
		clientv3.WithRequireLeader(b.open), "onelane-stream", strconv.FormatInt(stream, 10)))
	created, signals := make(chan struct{}), make(chan struct{}, 1)
	begun := b.begin(func() {
		defer cancel()
		late := time.AfterFunc(longestCreation, cancel)
		events := b.client.Watch(own, key) // returns when etcd has confirmed it, or own ended
		late.Stop()
		// If a watch is canceled while it is created, the client forgets to tell the server. So own
		// is canceled only now, if the caller has gone.
		select {
		case created <- struct{}{}:
			b.forward(key, stream, events, signals)
		case <-ctx.Done():
		}
	})
	if !begun {
		cancel()
		return nil, func() {}, unavailable(key, errClosed)
	}
	select {
	case <-created:
		return signals, cancel, nil
	case <-ctx.Done():
		return nil, func() {}, b.failed(ctx, key, ctx.Err())
	}
}

// begin runs fn in a goroutine that Close waits for. It reports whether the backend is open.
func (b *backend) begin(fn func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Err() != nil {
		return false
	}
	b.watches.Go(fn)
	return true
}

// forward signals until the watch ends. If etcd ended it, later watches use another stream. The
// client keeps a stream for as long as one of its watches lasts, with the token that it began with.
// When that has expired, etcd refuses all further watches on the stream.
func (b *backend) forward(key string, stream int64, events clientv3.WatchChan, signals chan<- struct{}) {
	defer close(signals)
	for answer := range events {
		if answer.Err() != nil {
			b.stream.CompareAndSwap(stream, stream+1)
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

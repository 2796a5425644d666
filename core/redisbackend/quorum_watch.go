package redisbackend

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"time"
)

// gatherTime is how long a signal of one node waits, on average, for those of the others. Callers
// that ask at the same moment may get a part of the votes each.
const gatherTime = time.Millisecond

var hashSeed = maphash.MakeSeed()

// listened returns the nodes to subscribe on: so many that every majority has one of them. They
// differ from key to key. Nodes that do not answer come last.
func (q *quorum) listened(key string) []int {
	n, first := len(q.nodes), int(maphash.String(hashSeed, key)%uint64(len(q.nodes)))
	var nodes, excluded []int
	for i := range n {
		if i = (first + i) % n; q.nodes[i].health.excluded() == reasonTimeouts {
			excluded = append(excluded, i)
		} else {
			nodes = append(nodes, i)
		}
	}
	return append(nodes, excluded...)[:n-q.majority()+1]
}

// Watch implements core.Backend. It returns when the first node has confirmed the subscription;
// each later confirmation is a signal.
func (q *quorum) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	if q.nodes[0].wakes == nil {
		return nil, func() {}, nil
	}
	nodes := q.listened(key)
	w := &quorumWatch{changed: make(chan struct{}, 1), signals: make(chan struct{}, 1), over: make(chan struct{})}
	ctx, w.cancel = context.WithCancel(ctx)
	answers := make(chan error, len(nodes))
	w.nodes.Add(len(nodes))
	for _, i := range nodes {
		go w.listen(ctx, q.nodes[i], key, answers)
	}
	var errs []error
	for range nodes {
		err := <-answers
		if err == nil {
			go w.gather(q.nodes[0].jitter)
			return w.changed, sync.OnceFunc(func() { close(w.over); w.cancel() }), nil
		}
		errs = append(errs, err)
	}
	w.cancel()
	return nil, nil, errors.Join(errs...)
}

// quorumWatch is one waiter's subscription to several nodes.
type quorumWatch struct {
	changed chan struct{}
	signals chan struct{} // of all nodes
	over    chan struct{} // closed when the waiter is gone
	cancel  context.CancelFunc
	nodes   sync.WaitGroup // that still may signal
}

// listen passes on the signals of one node until its subscription ends or the waiter is gone.
func (w *quorumWatch) listen(ctx context.Context, n *node, key string, answers chan<- error) {
	defer w.nodes.Done()
	changed := make(chan struct{}, 1)
	known := n.subscribed(key)
	stop, err := n.watch(ctx, key, changed)
	answers <- err
	if err != nil {
		return
	}
	defer stop()
	if !known {
		signal(w.signals) // something may have changed before the subscription
	}
	for {
		select {
		case _, open := <-changed:
			if !open {
				return
			}
			signal(w.signals)
		case <-w.over:
			return
		}
	}
}

// gather makes one signal of those that come within a moment. It closes the channel when no node is
// left.
func (w *quorumWatch) gather(jitter func(time.Duration) time.Duration) {
	ended := make(chan struct{})
	go func() { w.nodes.Wait(); close(ended) }()
	defer w.cancel()
	for {
		select {
		case <-w.signals:
		case <-ended:
			close(w.changed)
			return
		}
		select {
		case <-time.After(jitter(gatherTime)):
		case <-w.over:
		}
		select {
		case <-w.signals:
		default:
		}
		signal(w.changed)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

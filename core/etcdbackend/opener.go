package etcdbackend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/cleanup"
	"github.com/onelane/onelane/internal/leases"
)

const defaultTimeout = 5 * time.Second

// Option configures the backend. A nil Option is ignored; the later of two wins.
type Option interface{ apply(*opener) }

type option func(*opener)

func (o option) apply(p *opener) { o(p) }

// WithTimeout bounds each call, unless the call's context ends sooner. The default is 5 s. A
// request to a member that hangs takes a quarter of this time. After that the call asks again,
// usually another member.
func WithTimeout(d time.Duration) Option {
	return option(func(p *opener) { p.timeout = d })
}

// New returns the backend on an etcd client. It never closes the client. Several Lockers may share
// one client.
//
// Set DialKeepAliveTime to 10 s, the least that gRPC allows, and DialKeepAliveTimeout to 3 s in the
// client's configuration. Without them the client goes on asking a member that hangs. Waiters that
// watch through this member then poll once a second. core.New returns an error if client is nil or
// the time-out is not positive.
func New(client *clientv3.Client, opts ...Option) core.Opener {
	p := &opener{client: client, timeout: defaultTimeout}
	for _, o := range opts {
		if o != nil {
			o.apply(p)
		}
	}
	return p
}

// opener is what New was called with.
type opener struct {
	client  *clientv3.Client
	timeout time.Duration
}

// Open implements core.Opener.
func (p *opener) Open(env core.Environment) (core.Backend, error) {
	if p.client == nil {
		return nil, errors.New("etcdbackend: New needs a client, got nil")
	}
	if p.timeout <= 0 {
		return nil, fmt.Errorf("etcdbackend: time-out %v must be positive", p.timeout)
	}
	b := &backend{client: p.client, timeout: p.timeout, ago: ago}
	b.cleaning = newCleaning(cmp.Or(env.Logger, slog.Default()))
	b.open, b.stop = context.WithCancel(context.Background())
	return b, nil
}

// backend is the core.Backend on etcd. Its verbs are in verbs.go.
type backend struct {
	client  *clientv3.Client
	timeout time.Duration

	open    context.Context // until Close
	stop    context.CancelFunc
	mu      sync.Mutex // held while a watch begins, and while Close ends the context open
	watches sync.WaitGroup
	stream  atomic.Int64 // the number of the stream that new watches use

	ago       func(t, now time.Time) time.Duration // tests replace it
	sightings leases.Sightings
	retention retention
	cleaning  *cleanup.Queue
}

// Close implements core.Backend. It gives clean-ups a second and then ends them.
func (b *backend) Close() error {
	b.cleaning.Close(cleanup.CloseGrace)
	b.mu.Lock()
	b.stop() // no watch begins after this
	b.mu.Unlock()
	b.watches.Wait()
	return nil
}

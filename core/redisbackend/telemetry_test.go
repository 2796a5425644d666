package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// gauges collects metrics.
type gauges struct{ *sdkmetric.ManualReader }

func newGauges() (gauges, core.Option) {
	reader := sdkmetric.NewManualReader()
	return gauges{reader}, core.WithTelemetry(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), nil)
}

// of returns the value of an instrument about a node.
func (g gauges) of(t *testing.T, name, node string) (value float64, measured bool) {
	t.Helper()
	var all metricdata.ResourceMetrics
	ok(t, "Collect", g.Collect(t.Context(), &all))
	about := func(attrs attribute.Set) bool {
		v, _ := attrs.Value("onelane.node")
		return v.AsString() == node
	}
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					if about(p.Attributes) {
						value, measured = float64(p.Value), true
					}
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					if about(p.Attributes) {
						value, measured = float64(p.Value), true
					}
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					if about(p.Attributes) {
						value, measured = p.Value, true
					}
				}
			}
		}
	}
	return value, measured
}

func (g gauges) await(t *testing.T, name, node string, done func(float64) bool) {
	t.Helper()
	eventually(t, name, func() bool {
		v, measured := g.of(t, name, node)
		return measured && done(v)
	})
}

func zero(v float64) bool     { return v == 0 }
func positive(v float64) bool { return v > 0 }

func TestMetrics_SubscriptionDown(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (*testutil.Node, redis.UniversalClient){
		"client": func(t *testing.T) (*testutil.Node, redis.UniversalClient) {
			n := testutil.Redis(t)
			return n, n.Client()
		},
		"Redis Cluster": func(t *testing.T) (*testutil.Node, redis.UniversalClient) {
			c := testutil.RedisCluster(t, 1)
			return c.Nodes[0], c.Client()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node, client := start(t)
			subscriptionDown(t, node, one(client))
		})
	}
}

func subscriptionDown(t *testing.T, node *testutil.Node, o core.Opener) {
	g, telemetry := newGauges()
	l, other := locker(t, o, telemetry), locker(t, o)
	acquire(t, other, "k", core.WithTTL(time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, "k", core.WithOutageWait(time.Hour))
		waited <- err
	}()
	admin := node.Client()
	eventually(t, "somebody listens", func() bool {
		return strings.Contains(admin.Info(t.Context(), "commandstats").Val(), "subscribe:calls")
	})
	g.await(t, "onelane.subscriptions.down", node.Addr(), zero)
	node.Kill()
	g.await(t, "onelane.subscriptions.down", node.Addr(), positive)
	node.Restart()
	// The waiter may have the key by now. The next one subscribes again.
	cancel()
	<-waited
	acquire(t, other, "k2", core.WithTTL(time.Minute))
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := l.Acquire(ctx, "k2")
		waited <- err
	}()
	g.await(t, "onelane.subscriptions.down", node.Addr(), zero)
	cancel()
	<-waited
}

// A user that may not subscribe polls, and telemetry shows that.
func TestMetrics_SubscriptionRefused(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	g, telemetry := newGauges()
	l := locker(t, redisbackend.New(restricted(t, node, neededCommands)), telemetry)
	acquire(t, locker(t, one(node.Client())), "k", core.WithTTL(time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, "k", core.WithWait(time.Hour))
		waited <- err
	}()
	g.await(t, "onelane.subscriptions.down", node.Addr(), positive)
	cancel()
	wantEnded(t, "Acquire", <-waited, context.Canceled)
	g.await(t, "onelane.subscriptions.down", node.Addr(), positive)
}

func TestMetrics_OfAHungNode(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	g, telemetry := newGauges()
	l := locker(t, one(node.Client()), telemetry)
	ok(t, "Ping", l.Ping(t.Context()))
	skew, measured := g.of(t, "onelane.node.clock.skew", node.Addr())
	if !measured || skew < -5 || skew > 5 {
		t.Errorf("the clock of a Redis on this machine is %v s behind, measured: %v", skew, measured)
	}
	for _, name := range []string{"onelane.cleanups.waiting", "onelane.calls.unanswered", "onelane.subscriptions.down"} {
		g.await(t, name, node.Addr(), zero)
	}
	node.Stop()
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := l.Acquire(ctx, fmt.Sprint("k", i))
		if !errors.Is(err, core.ErrUnavailable) { // once the node is known to hang, a call fails before its deadline
			wantEnded(t, "Acquire", err, context.DeadlineExceeded)
		}
		cancel()
	}
	g.await(t, "onelane.cleanups.waiting", node.Addr(), positive)
	g.await(t, "onelane.calls.unanswered", node.Addr(), positive)
	node.Cont()
	g.await(t, "onelane.cleanups.waiting", node.Addr(), zero)
	ok(t, "Close", l.Close())
	if _, measured := g.of(t, "onelane.cleanups.waiting", node.Addr()); measured {
		t.Error("a backend that is closed is still measured")
	}
}

// deafPool ignores contexts until it is freed.
type deafPool struct {
	redsyncredis.Pool
	freed chan struct{}
}

func (p deafPool) Get(context.Context) (redsyncredis.Conn, error) {
	<-p.freed
	return nil, errors.New("no connection")
}

func TestMetrics_StuckCalls(t *testing.T) {
	t.Parallel()
	p := deafPool{freed: make(chan struct{})}
	c := redisbackend.Pools(p)
	c.NodeTimeout = 300 * time.Millisecond
	g, telemetry := newGauges()
	l := locker(t, c, telemetry, core.WithOutageWait(0))
	for range 3 {
		err := l.Ping(t.Context())
		want(t, "Ping", err, core.ErrUnavailable)
		if !strings.Contains(err.Error(), "redis pool 1: no answer within 300ms") {
			t.Errorf("Ping: %v", err)
		}
	}
	g.await(t, "onelane.calls.stuck", "pool 1", func(v float64) bool { return v == 3 })
	close(p.freed)
	g.await(t, "onelane.calls.stuck", "pool 1", zero)
}

// A second Locker on the same Redis, which has nothing to do, does not hide the trouble of the
// first.
func TestMetrics_OfTwoLockers(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	g, telemetry := newGauges()
	l := locker(t, one(node.Client()), telemetry)
	locker(t, one(node.Client()), telemetry)
	ok(t, "Ping", l.Ping(t.Context()))
	node.Stop()
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := l.Acquire(ctx, fmt.Sprint("k", i))
		if !errors.Is(err, core.ErrUnavailable) { // once the node is known to hang, a call fails before its deadline
			wantEnded(t, "Acquire", err, context.DeadlineExceeded)
		}
		cancel()
	}
	g.await(t, "onelane.cleanups.waiting", node.Addr(), positive)
	node.Cont()
	g.await(t, "onelane.cleanups.waiting", node.Addr(), zero)
}

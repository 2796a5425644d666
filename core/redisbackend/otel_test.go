package redisbackend_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/testutil"
)

// poolNames collects the names of the pools that go-redis reports to OpenTelemetry.
type poolNames struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (p *poolNames) note(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[name] = true
}

func (p *poolNames) noteConn(cn redis.ConnInfo) {
	if cn != nil {
		p.note(cn.PoolName())
	}
}

func (p *poolNames) of(addr string) (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range maps.Keys(p.seen) {
		if strings.HasPrefix(name, addr+"_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (p *poolNames) RecordConnectionCreateTime(_ context.Context, _ time.Duration, cn redis.ConnInfo) {
	p.noteConn(cn)
}

func (p *poolNames) RecordConnectionWaitTime(_ context.Context, _ time.Duration, cn redis.ConnInfo) {
	p.noteConn(cn)
}

func (p *poolNames) RecordConnectionClosed(_ context.Context, cn redis.ConnInfo, _ string, _ error) {
	p.noteConn(cn)
}

func (p *poolNames) RecordConnectionCount(_ context.Context, _ int, cn redis.ConnInfo, _ string, _ bool) {
	p.noteConn(cn)
}

func (p *poolNames) RecordPendingRequests(_ context.Context, _ int, _ redis.ConnInfo, pool string) {
	p.note(pool)
}
func (p *poolNames) RegisterPool(name string, _ redis.Pooler)             { p.note(name) }
func (p *poolNames) RegisterPubSubPool(name string, _ redis.PubSubPooler) { p.note(name) }
func (p *poolNames) UnregisterPool(redis.Pooler)                          {}
func (p *poolNames) UnregisterPubSubPool(redis.PubSubPooler)              {}

func (p *poolNames) RecordOperationDuration(context.Context, time.Duration, redis.Cmder, int, error, redis.ConnInfo, int) {
}

func (p *poolNames) RecordPipelineOperationDuration(context.Context, time.Duration, string, int, int, error, redis.ConnInfo, int) {
}
func (p *poolNames) RecordConnectionRelaxedTimeout(context.Context, int, redis.ConnInfo, string, string) {
}
func (p *poolNames) RecordConnectionHandoff(context.Context, redis.ConnInfo, string)           {}
func (p *poolNames) RecordError(context.Context, string, redis.ConnInfo, string, bool, int)    {}
func (p *poolNames) RecordMaintenanceNotification(context.Context, redis.ConnInfo, string)     {}
func (p *poolNames) RecordPubSubMessage(context.Context, redis.ConnInfo, string, string, bool) {}
func (p *poolNames) RecordStreamLag(context.Context, time.Duration, redis.ConnInfo, string, string, string) {
}

// However often connections are replaced, go-redis' metrics get no new series.
func TestConnections_NamesOfPools(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	names := &poolNames{seen: map[string]bool{}}
	redis.SetOTelRecorder(names)
	defer redis.SetOTelRecorder(nil)
	client := newClient(t, &redis.Options{Addr: node.Addr(), ConnMaxLifetime: time.Millisecond})
	l := locker(t, one(client))
	admin := node.Client()
	before := statistic(t, admin, "total_connections_received")
	eventually(t, "connections are replaced", func() bool {
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		return statistic(t, admin, "total_connections_received")-before > 300
	})
	// Each of up to 25 clients has three, on a machine so busy that Redis looks far away. Two clients are
	// the test's.
	all := names.of(node.Addr())
	if t.Logf("%d names of pools", len(all)); len(all) > 3*(25+2) {
		t.Errorf("%d names of pools: %v", len(all), all)
	}
}

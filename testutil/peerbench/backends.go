package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/testutil/internal/server"
)

// backends: the same lock on each kind of server, beside the locks of etcd's and ZooKeeper's own
// client libraries.
func backends(goroutines int, hot bool) scenario {
	s := scenario{
		name: fmt.Sprintf("backends-own-%d", goroutines),
		about: fmt.Sprintf("%d goroutine(s), each with a key of its own: lock and unlock on one Redis, five masters, PostgreSQL, "+
			"an etcd of three members and a ZooKeeper of three servers, all on this machine. Only etcd syncs to disk. "+
			"The CPU time is this process's, per lock.", goroutines),
		columns: []column{{"per s", false}, {"p50 ms", true}, {"p99 ms", true}, {"µs CPU", true}},
	}
	measure := func(ctx context.Context, d time.Duration, l locker) (sample, error) {
		if _, err := load(ctx, d/8, goroutines, onOwnKey(l)); err != nil {
			return nil, err
		}
		runtime.GC()
		own := processCPU()
		t, err := load(ctx, d, goroutines, onOwnKey(l))
		return sample{t.perSecond(), t.wait(50), t.wait(99), perOp(processCPU()-own, t)}, err
	}
	if hot {
		s.name = "backends-hot"
		s.about = fmt.Sprintf("%d goroutines of one process want one key, on the servers of backends-own.", goroutines)
		s.columns = []column{{"per s", false}, {"p50 ms", true}, {"p99 ms", true}, {"longest ms", true}, {"most turns / fair", true}}
		measure = measureHot(goroutines)
	}
	s.open = func(b *bench) (cs []contender, err error) {
		for _, p := range []struct {
			name string
			kind kind
			open func(*bench) (locker, func(), error)
		}{
			{"onelane on one Redis", ours, oursOnRedis},
			{"onelane on five masters", ours, oursOnMasters},
			{"onelane on PostgreSQL", ours, oursOnPostgres},
			{"onelane on etcd", ours, oursOnEtcd},
			{"etcd concurrency.Mutex", theirs, openEtcdMutex},
			{"onelane on ZooKeeper", ours, oursOnZooKeeper},
			{"go-zookeeper zk.Lock", theirs, openZooKeeperLock},
		} {
			l, closeIt, err := p.open(b)
			if err != nil {
				return cs, fmt.Errorf("%s: %w", p.name, err)
			}
			cs = append(cs, contender{name: p.name, kind: p.kind, close: closeIt, run: func(ctx context.Context, d time.Duration) (sample, error) {
				return measure(ctx, d, l)
			}})
		}
		return cs, nil
	}
	for _, t := range []struct{ ours, theirs string }{
		{"onelane on etcd", "etcd concurrency.Mutex"}, {"onelane on ZooKeeper", "go-zookeeper zk.Lock"},
	} {
		s.targets = append(s.targets, target{t.ours + " at least as fast as " + t.theirs, times(t.ours, t.theirs, "per s"), 1, 0})
	}
	return s
}

// oursOn returns a locker on a backend.
func oursOn(o core.Opener, closeClient func()) (locker, func(), error) {
	l, err := core.New(o, core.WithTTL(ttl), core.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, nil, err
	}
	return onelane{l}, func() { _ = l.Close(); closeClient() }, nil
}

func oursOnRedis(b *bench) (locker, func(), error) {
	addr, err := b.redis()
	if err != nil {
		return nil, nil, err
	}
	return openOurs(addr)
}

func oursOnMasters(b *bench) (locker, func(), error) {
	nodes, err := b.quorum()
	if err != nil {
		return nil, nil, err
	}
	var clients []redis.UniversalClient
	for _, n := range nodes {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: n.Addr}))
	}
	backend := redisbackend.New(clients...)
	backend.NewInstallation = true // the masters were started for this
	return oursOn(backend, func() {
		for _, c := range clients {
			_ = c.Close()
		}
	})
}

func oursOnPostgres(b *bench) (locker, func(), error) {
	db, err := openGORM(b, database{kind: server.Postgres}, 64, new(statements))
	if err != nil {
		return nil, nil, err
	}
	conns, err := db.DB()
	if err != nil {
		return nil, nil, err
	}
	if err := sqlbackend.Migrate(context.Background(), conns); err != nil {
		return nil, nil, err
	}
	return oursOn(sqlbackend.New(conns), func() { closeGORM(db) })
}

func oursOnEtcd(b *bench) (locker, func(), error) {
	client, err := b.etcd()
	if err != nil {
		return nil, nil, err
	}
	return oursOn(etcdbackend.New(client), func() { _ = client.Close() })
}

func oursOnZooKeeper(b *bench) (locker, func(), error) {
	addrs, err := b.zookeeper()
	if err != nil {
		return nil, nil, err
	}
	return oursOn(zkbackend.New(addrs), func() {})
}

// etcdSessions is how many sessions there are for the mutexes: two of one session do not exclude
// each other.
const etcdSessions = 256

func openEtcdMutex(b *bench) (locker, func(), error) {
	client, err := b.etcd()
	if err != nil {
		return nil, nil, err
	}
	sessions := make(chan *concurrency.Session, etcdSessions)
	for range etcdSessions {
		s, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
		if err != nil {
			return nil, nil, err
		}
		sessions <- s
	}
	lock := lockFunc(func(ctx context.Context, key string) (func(context.Context) error, error) {
		s := <-sessions
		m := concurrency.NewMutex(s, "mutex/"+key)
		if err := m.Lock(ctx); err != nil {
			sessions <- s
			return nil, err
		}
		return func(ctx context.Context) error {
			defer func() { sessions <- s }()
			return m.Unlock(ctx)
		}, nil
	})
	return lock, func() { _ = client.Close() }, nil
}

func openZooKeeperLock(b *bench) (locker, func(), error) {
	addrs, err := b.zookeeper()
	if err != nil {
		return nil, nil, err
	}
	conn, events, err := zk.Connect(addrs, ttl, zk.WithLogInfo(false))
	if err != nil {
		return nil, nil, err
	}
	go func() {
		for range events { // nobody else reads them
		}
	}()
	return lockFunc(func(_ context.Context, key string) (func(context.Context) error, error) {
		l := zk.NewLock(conn, "/peer-"+strings.ReplaceAll(key, ":", "-"), zk.WorldACL(zk.PermAll))
		if err := l.Lock(); err != nil {
			return nil, err
		}
		return func(context.Context) error { return l.Unlock() }, nil
	}), conn.Close, nil
}

// etcd returns a client of the etcd of three members.
func (b *bench) etcd() (*clientv3.Client, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.etcdMembers == nil {
		members, err := server.StartEtcdCluster(context.Background(), 3, func(_ int, listen string) string { return "http://" + listen })
		if err != nil {
			return nil, err
		}
		b.etcdMembers = members
		b.started = append(b.started, members...)
	}
	var addrs []string
	for _, m := range b.etcdMembers {
		addrs = append(addrs, m.Addr)
	}
	return clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
}

// zookeeper returns the addresses of the ensemble of three servers.
func (b *bench) zookeeper() (addrs []string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ensemble == nil {
		if b.ensemble, err = server.StartEnsemble(context.Background(), 3, server.Direct); err != nil {
			return nil, err
		}
		b.started = append(b.started, b.ensemble...)
	}
	for _, s := range b.ensemble {
		addrs = append(addrs, s.Addr)
	}
	return addrs, nil
}

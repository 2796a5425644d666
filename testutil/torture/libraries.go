package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/go-zookeeper/zk"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/core/zkbackend"
)

// ttl is that of all locks and sessions.
const ttl = 2 * time.Second

// A holding is a lock that a worker has.
type holding struct {
	token uint64 // 0 if the library gives none
	// held asks the library whether it believes that the lock is held. It does not block.
	held    func() bool
	release func(context.Context) error
}

// acquire blocks until it has the lock or ctx ends.
type acquire func(ctx context.Context, key string) (*holding, error)

// A library is one lock library on one kind of server, used as its documentation says.
type library struct {
	name    string
	servers topology
	tokens  bool
	open    func(addrs []string) (acquire, error)
	// exclusive reports whether the library promises one holder under a fault. It is set for our
	// own locks only: a broken promise of theirs is not ours to judge.
	exclusive func(fault string) bool
}

var libraries = []library{
	{name: "redsync", servers: oneRedis, open: openRedsync},
	{name: "redsync-3", servers: threeRedis, open: openRedsync},
	{name: "redislock", servers: oneRedis, open: openRedislock},
	{name: "rueidislock", servers: oneRedis, open: openRueidislock},
	{name: "etcd-mutex", servers: oneEtcd, tokens: true, open: openEtcdMutex},
	{name: "zk-lock", servers: oneZooKeeper, open: openZooKeeperLock},
	{name: "onelane-redis", servers: oneRedis, tokens: true, open: openOurRedis, exclusive: except("fail-over", "restart", "clock")},
	{name: "onelane-redis-3", servers: threeRedis, tokens: true, open: openOurRedis, exclusive: except("clock")},
	{name: "onelane-etcd", servers: oneEtcd, tokens: true, open: openOurEtcd, exclusive: except()},
	{name: "onelane-zk", servers: oneZooKeeper, tokens: true, open: openOurZooKeeper, exclusive: except()},
	{name: "onelane-sql", servers: onePostgres, tokens: true, open: openOurSQL, exclusive: except("clock")},
}

// except returns what reports whether a fault is none of these.
func except(faults ...string) func(string) bool {
	return func(f string) bool { return !slices.Contains(faults, f) }
}

func libraryNamed(name string) (library, error) {
	for _, l := range libraries {
		if l.name == name {
			return l, nil
		}
	}
	return library{}, fmt.Errorf("no library is called %q", name)
}

// renewing renews a lock of a library that leaves this to its user, at a third of the TTL. The first
// error ends the belief: the user knows that something is wrong then, and stops.
func renewing(renew func(context.Context) error) (held func() bool, stop func()) {
	var lost atomic.Bool
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(ttl / 3):
			}
			if err := renew(ctx); err != nil {
				lost.Store(true)
				return
			}
		}
	})
	return func() bool { return !lost.Load() }, func() { cancel(); ended.Wait() }
}

func openRedsync(addrs []string) (acquire, error) {
	var pools []redsyncredis.Pool
	for _, addr := range addrs {
		pools = append(pools, goredis.NewPool(redis.NewClient(&redis.Options{Addr: addr})))
	}
	rs := redsync.New(pools...)
	return func(ctx context.Context, key string) (*holding, error) {
		m := rs.NewMutex(key, redsync.WithExpiry(ttl))
		if err := m.LockContext(ctx); err != nil {
			return nil, err
		}
		// Until is how redsync says for how long the lock is valid.
		var until atomic.Int64
		base := time.Now()
		until.Store(int64(m.Until().Sub(base)))
		held, stop := renewing(func(ctx context.Context) error {
			ok, err := m.ExtendContext(ctx)
			if err == nil && !ok {
				err = errors.New("not extended")
			}
			until.Store(int64(m.Until().Sub(base)))
			return err
		})
		return &holding{
			held:    func() bool { return held() && time.Since(base) < time.Duration(until.Load()) },
			release: func(ctx context.Context) error { stop(); _, err := m.UnlockContext(ctx); return err },
		}, nil
	}, nil
}

func openRedislock(addrs []string) (acquire, error) {
	client := redislock.New(redis.NewClient(&redis.Options{Addr: addrs[0]}))
	return func(ctx context.Context, key string) (*holding, error) {
		l, err := client.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(50 * time.Millisecond)})
		if err != nil {
			return nil, err
		}
		held, stop := renewing(func(ctx context.Context) error { return l.Refresh(ctx, ttl, nil) })
		return &holding{held: held, release: func(ctx context.Context) error { stop(); return l.Release(ctx) }}, nil
	}, nil
}

func openRueidislock(addrs []string) (acquire, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: addrs},
		KeyMajority:  1, KeyValidity: ttl, // one Redis, so one key
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (*holding, error) {
		lock, cancel, err := l.WithContext(ctx, key)
		if err != nil {
			return nil, err
		}
		return &holding{
			held:    func() bool { return lock.Err() == nil },
			release: func(context.Context) error { cancel(); return nil },
		}, nil
	}, nil
}

// etcdClient notices a server that does not answer, as etcd's documentation recommends.
func etcdClient(addrs []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop(), DialTimeout: ttl,
		DialKeepAliveTime: ttl, DialKeepAliveTimeout: ttl})
}

func openEtcdMutex(addrs []string) (acquire, error) {
	client, err := etcdClient(addrs)
	if err != nil {
		return nil, err
	}
	var session *concurrency.Session
	return func(ctx context.Context, key string) (*holding, error) {
		if session == nil || ended(session.Done()) {
			if session, err = concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second))); err != nil {
				session = nil
				return nil, err
			}
		}
		s, m := session, concurrency.NewMutex(session, key)
		if err := m.Lock(ctx); err != nil {
			return nil, err
		}
		return &holding{
			token:   uint64(m.Header().Revision),
			held:    func() bool { return !ended(s.Done()) },
			release: m.Unlock,
		}, nil
	}, nil
}

func ended(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func openZooKeeperLock(addrs []string) (acquire, error) {
	conn, events, err := zk.Connect(addrs, ttl, zk.WithLogInfo(false), zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	// A holder whose connection breaks may have lost the lock: ZooKeeper tells of the end of a session
	// only after it is connected again.
	var breaks atomic.Int64
	go func() {
		for e := range events {
			if e.Type == zk.EventSession && (e.State == zk.StateDisconnected || e.State == zk.StateExpired) {
				breaks.Add(1)
			}
		}
	}()
	return func(_ context.Context, key string) (*holding, error) {
		l := zk.NewLock(conn, "/"+strings.ReplaceAll(key, ":", "-"), zk.WorldACL(zk.PermAll))
		before := breaks.Load()
		if err := l.Lock(); err != nil {
			return nil, err
		}
		return &holding{
			held: func() bool { return breaks.Load() == before },
			release: func(ctx context.Context) error {
				for { // a node that stays keeps everybody out, its own worker, too
					err := l.Unlock()
					if err == nil || ctx.Err() != nil || errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrSessionExpired) {
						return err
					}
					time.Sleep(20 * time.Millisecond)
				}
			},
		}, nil
	}, nil
}

// silent is a logger.
type silent struct{}

func (silent) Printf(string, ...any) {}

// ours is the lock of core on a backend.
func ours(backend core.Opener) (acquire, error) {
	l, err := core.New(backend, core.WithTTL(ttl), core.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (*holding, error) {
		k, err := l.Acquire(ctx, key, core.WithToken())
		if err != nil {
			return nil, err
		}
		token, err := k.Token(ctx)
		if err != nil {
			return nil, errors.Join(err, k.Release(ctx))
		}
		return &holding{token: token, held: func() bool { return k.Err() == nil }, release: k.Release}, nil
	}, nil
}

func openOurRedis(addrs []string) (acquire, error) {
	var clients []redis.UniversalClient
	for _, addr := range addrs {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: addr}))
	}
	backend := redisbackend.New(clients...)
	backend.LongestTTL = ttl
	return ours(backend)
}

func openOurEtcd(addrs []string) (acquire, error) {
	client, err := etcdClient(addrs)
	if err != nil {
		return nil, err
	}
	return ours(etcdbackend.New(client))
}

func openOurZooKeeper(addrs []string) (acquire, error) { return ours(zkbackend.New(addrs)) }

func openOurSQL(addrs []string) (acquire, error) {
	db, err := sql.Open("pgx", addrs[0])
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(4)
	return ours(sqlbackend.New(db))
}

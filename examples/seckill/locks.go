package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/zkbackend"
)

// openRecords makes the Locker for recorded answers. It is the Locker of the stock, if it can keep
// them. Several Redis masters keep locks only, so the answers are on a separate Redis.
func openRecords(ctx context.Context, o options, stock *core.Locker, opts ...core.Option) (*core.Locker, func(), error) {
	if stock.Seals() {
		return stock, func() {}, nil
	}
	o.redis = o.records
	records, stop, err := openLocks(ctx, o, opts...)
	if err != nil {
		return nil, stop, err
	}
	return records, func() { _ = records.Close(); stop() }, nil
}

// openLocks makes the Locker on the servers that were named. Only the backend differs between
// Redis, etcd and ZooKeeper.
func openLocks(ctx context.Context, o options, opts ...core.Option) (l *core.Locker, stop func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch {
	case o.etcd != "":
		client, err := clientv3.New(clientv3.Config{
			Endpoints:         strings.Split(o.etcd, ","),
			DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
			Logger: zap.NewNop(),
		})
		if err != nil {
			return nil, func() {}, fmt.Errorf("-etcd %q: %w", o.etcd, err)
		}
		return answering(ctx, "etcd at "+o.etcd, etcdbackend.New(client), func() { _ = client.Close() }, opts...)
	case o.zookeeper != "":
		backend := zkbackend.New(strings.Split(o.zookeeper, ","))
		return answering(ctx, "ZooKeeper at "+o.zookeeper, backend, func() {}, opts...)
	}
	clients, err := openRedis(ctx, o.redis)
	stop = func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}
	if err != nil {
		return nil, stop, err
	}
	backend := redisbackend.New(clients...)
	backend.NodeTimeout, backend.NewInstallation = o.nodeTimeout, o.newQuorum
	l, err = core.New(backend, opts...)
	return l, stop, err
}

// answering makes a Locker and checks that its server answers.
func answering(ctx context.Context, name string, o core.Opener, stop func(), opts ...core.Option) (*core.Locker, func(), error) {
	l, err := core.New(o, opts...)
	if err != nil {
		return nil, stop, err
	}
	if err := l.Ping(ctx); err != nil {
		_ = l.Close()
		return nil, stop, fmt.Errorf("the %s does not answer: %w", name, err)
	}
	return l, stop, nil
}

// openRedis returns one client for each address, all of which answer.
func openRedis(ctx context.Context, addrs string) (clients []redis.UniversalClient, err error) {
	redis.SetLogger(quiet{})
	for addr := range strings.SplitSeq(addrs, ",") {
		if !strings.Contains(addr, ":") {
			return clients, fmt.Errorf("-redis %q: it must be host:port, or several separated by commas", addrs)
		}
		c := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 64, ContextTimeoutEnabled: true})
		clients = append(clients, c)
		if err := c.Ping(ctx).Err(); err != nil {
			return clients, fmt.Errorf("the Redis at %s does not answer: %w", addr, err)
		}
	}
	return clients, nil
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
)

// zookeeperAuthEnv is the scheme and the credentials, such as digest:user:password.
const zookeeperAuthEnv = "ONELANE_ZOOKEEPER_AUTH"

// zookeeperPlace is a ZooKeeper ensemble. The keys of a Locker are in nodes below root/shard.
type zookeeperPlace struct {
	servers             []string
	root                string
	scheme, credentials string
}

func openZooKeeper(servers, root string) (place, error) {
	z := zookeeperPlace{servers: strings.Split(servers, ","), root: root}
	if auth := os.Getenv(zookeeperAuthEnv); auth != "" {
		var ok bool
		if z.scheme, z.credentials, ok = strings.Cut(auth, ":"); !ok {
			return nil, fmt.Errorf("%s must be scheme:credentials, such as digest:user:password", zookeeperAuthEnv)
		}
	}
	return z, nil
}

func (z zookeeperPlace) opener(timeout time.Duration) core.Opener {
	opts := []zkbackend.Option{zkbackend.WithRoot(z.root), zkbackend.WithTimeout(timeout)}
	if z.scheme != "" {
		opts = append(opts, zkbackend.WithAuth(z.scheme, z.credentials))
	}
	return zkbackend.New(z.servers, opts...)
}

func (z zookeeperPlace) Close() error { return nil }

// scan implements place. The library has no contexts: a connection that ends ends its requests.
func (z zookeeperPlace) scan(ctx context.Context, s search) (keys []string, more bool, err error) {
	const session = 10 * time.Second
	dial := func(network, address string, timeout time.Duration) (net.Conn, error) {
		c, err := net.DialTimeout(network, address, timeout)
		if err == nil { // Close of the library waits for a handshake
			context.AfterFunc(ctx, func() { _ = c.Close() })
		}
		return c, err
	}
	conn, events, err := zk.Connect(z.servers, session, zk.WithDialer(dial), zk.WithLogInfo(false), zk.WithLogger(noLog{}))
	if err != nil {
		return nil, false, fmt.Errorf("-zookeeper: %w", err)
	}
	stop := context.AfterFunc(ctx, conn.Close)
	defer func() {
		if stop() {
			conn.Close()
		}
		for range events { // until the library has ended
		}
	}()
	if z.scheme != "" {
		err = conn.AddAuth(z.scheme, []byte(z.credentials))
	}
	var shards []string
	if err == nil {
		shards, _, err = conn.Children(z.root)
	}
	for _, shard := range shards {
		var names []string
		if names, _, err = conn.Children(z.root + "/" + shard); err != nil {
			break
		}
		for _, name := range names {
			if name, err := url.PathUnescape(name); err == nil {
				if key, ok := userKey(s.prefix, name); ok && strings.HasPrefix(key, s.start) {
					keys = append(keys, key)
				}
			}
		}
	}
	slices.Sort(keys)
	if more = !s.held && len(keys) > s.limit; more {
		keys = keys[:s.limit]
	}
	switch {
	case errors.Is(err, zk.ErrNoNode): // nothing was locked under this root yet
		err = nil
	case err != nil:
		err = fmt.Errorf("ZooKeeper at %s: %w", strings.Join(z.servers, ","), errors.Join(ctx.Err(), err))
	}
	return keys, more, err
}

// noLog drops what the library logs beside the errors it returns.
type noLog struct{}

func (noLog) Printf(string, ...any) {}

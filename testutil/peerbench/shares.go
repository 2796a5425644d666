package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
)

// shares are halves of onelane: what each costs beside the bare commands. They are for keys that nobody
// waits for.
var shares = []peer{
	{"core on bare commands", reference, false, func(addr string) (locker, func(), error) {
		client := redis.NewClient(&redis.Options{Addr: addr})
		l, err := core.New(bareBackend{client: client}, core.WithTTL(ttl), core.WithLogger(slog.New(slog.DiscardHandler)))
		return onelane{l}, func() { _, _ = l.Close(), client.Close() }, err
	}},
	{"redisbackend without core", reference, false, func(addr string) (locker, func(), error) {
		client := redis.NewClient(&redis.Options{Addr: addr})
		b, err := redisbackend.New(client).Open(core.Environment{TTL: ttl, Logger: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter("")})
		return lockFunc(func(ctx context.Context, key string) (func(context.Context) error, error) {
			g, err := b.Acquire(ctx, core.Request{Key: key, Owner: "bench/" + strconv.FormatUint(rand.Uint64(), 16), TTL: ttl})
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error { _, err := b.Release(ctx, g); return err }, nil
		}), func() { _, _ = b.Close(), client.Close() }, err
	}},
}

// bareBackend has the two commands that a lock needs at least, and nothing else.
type bareBackend struct {
	core.Backend
	client *redis.Client
}

func (b bareBackend) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b bareBackend) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	sent := time.Now()
	if err := b.client.SetArgs(ctx, r.Key, r.Owner, redis.SetArgs{Mode: "NX", TTL: r.TTL}).Err(); err != nil {
		return core.Grant{}, &core.UnavailableError{Key: r.Key, Nodes: []error{err}}
	}
	return core.Grant{Key: r.Key, Owner: r.Owner, Deadline: sent.Add(r.TTL)}, nil
}

func (b bareBackend) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	n, err := deleteOwn.Run(ctx, b.client, []string{g.Key}, g.Owner).Int()
	if err == nil && n != 1 {
		err = fmt.Errorf("%w: key %q", core.ErrLost, g.Key)
	}
	return core.Waiters{}, err
}

func (bareBackend) Close() error { return nil }

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/redisbackend/rueidisdriver"
)

const ttl = 10 * time.Second // of every peer's locks

// locker is a peer, as the scenarios see it.
type locker interface {
	// lock waits until it holds the key, and returns what frees it.
	lock(ctx context.Context, key string) (unlock func(context.Context) error, err error)
}

// lockFunc is a locker.
type lockFunc func(ctx context.Context, key string) (func(context.Context) error, error)

func (f lockFunc) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	return f(ctx, key)
}

// peer is a way to lock a key on one Redis.
type peer struct {
	name string
	kind kind
	// waits says that it has its own way to wait for a key that is taken.
	waits bool
	// open returns a locker as one process would have it, with its own connection pool.
	open func(addr string) (locker, func(), error)
}

var peers = []peer{
	{"onelane", ours, true, openOurs},
	{"onelane on rueidis", ours, true, openOursRueidis},
	{"redsync", theirs, true, openRedsync},
	{"redislock", theirs, true, openRedislock},
	{pipelinedName, reference, true, openPipelinedRedislock},
	{"rueidislock", theirs, true, openRueidislock},
	{"bare commands", reference, false, openBare},
	{"bare, autopipelined", reference, false, openPipelined},
}

// pipelinedName is a reference, because go-redis' AutoPipeline is experimental. It ignores contexts.
const pipelinedName = "redislock on AutoPipeline"

// unlisted are peers of some scenarios, and of tests.
var unlisted = append([]peer{polling}, backendPeers...)

// polling is what many services write themselves: SET NX in a loop that asks every 1 to 5 ms.
var polling = peer{"SET NX, polling", theirs, true, func(addr string) (locker, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	return asking(client, func() time.Duration { return time.Millisecond + rand.N(4*time.Millisecond) }), func() { _ = client.Close() }, nil
}}

func peerNamed(name string) (peer, error) {
	for _, p := range append(unlisted, peers...) {
		if p.name == name {
			return p, nil
		}
	}
	return peer{}, fmt.Errorf("there is no peer %q", name)
}

// waiting are the peers that can wait for a key.
func waiting() []peer {
	var ps []peer
	for _, p := range peers {
		if p.waits {
			ps = append(ps, p)
		}
	}
	return ps
}

func openOurs(addr string) (locker, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	l, err := newLocker([]redis.UniversalClient{client})
	if err != nil {
		return nil, nil, err
	}
	return onelane{l}, func() { _, _ = l.Close(), client.Close() }, nil
}

func openOursRueidis(addr string) (locker, func(), error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		return nil, nil, err
	}
	l, err := newLockerOn(rueidisdriver.New(client))
	if err != nil {
		return nil, nil, err
	}
	return onelane{l}, func() { _ = l.Close(); client.Close() }, nil
}

func newLocker(clients []redis.UniversalClient) (*core.Locker, error) {
	return newLockerOn(redisbackend.New(clients...))
}

// newLockerOn returns one that does not log: a scenario may take it beyond what the machine can do.
func newLockerOn(backend redisbackend.Config) (*core.Locker, error) {
	backend.NewInstallation = true // a scenario starts its masters itself
	return core.New(backend, core.WithTTL(ttl), core.WithLogger(slog.New(slog.DiscardHandler)))
}

type onelane struct{ *core.Locker }

func (l onelane) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	k, err := l.Acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return k.Release, nil
}

func openRedsync(addr string) (locker, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	return redsyncOn(redsync.New(goredis.NewPool(client))), func() { _ = client.Close() }, nil
}

// redsyncOn begins anew when redsync gives up after its 32 tries, as a caller who has to have the
// lock would.
func redsyncOn(rs *redsync.Redsync, opts ...redsync.Option) locker {
	opts = append([]redsync.Option{redsync.WithExpiry(ttl)}, opts...)
	return lockFunc(func(ctx context.Context, key string) (func(context.Context) error, error) {
		m := rs.NewMutex(key, opts...)
		for {
			err := m.LockContext(ctx)
			var taken *redsync.ErrTaken
			switch {
			case err == nil:
				return func(ctx context.Context) error { _, err := m.UnlockContext(ctx); return err }, nil
			case ctx.Err() != nil || !errors.As(err, &taken) && !errors.Is(err, redsync.ErrFailed):
				return nil, err
			}
		}
	})
}

func redsyncPools(clients []redis.UniversalClient) []redsyncredis.Pool {
	pools := make([]redsyncredis.Pool, len(clients))
	for i, c := range clients {
		pools[i] = goredis.NewPool(c)
	}
	return pools
}

// Its doubling pauses begin at 16 ms, which it recommends as the least.
func openRedislock(addr string) (locker, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	return obtaining(redislock.New(client)), func() { _ = client.Close() }, nil
}

func openPipelinedRedislock(addr string) (locker, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	batching, err := client.AutoPipeline()
	if err != nil {
		return nil, nil, err
	}
	return obtaining(redislock.New(batching)), func() { _ = client.Close() }, nil
}

func obtaining(l *redislock.Client) locker {
	return lockFunc(func(ctx context.Context, key string) (func(context.Context) error, error) {
		for {
			k, err := l.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.ExponentialBackoff(16*time.Millisecond, 128*time.Millisecond)})
			switch {
			case err == nil:
				return k.Release, nil
			case ctx.Err() != nil || !errors.Is(err, redislock.ErrNotObtained) && !errors.Is(err, context.DeadlineExceeded):
				return nil, err
			}
		}
	})
}

// One key instead of a majority of three. Not its NoLoopTracking: with that, waiters of several
// processes are forgotten now and then.
func openRueidislock(addr string) (locker, func(), error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}},
		KeyMajority:  1, KeyValidity: ttl,
	})
	if err != nil {
		return nil, nil, err
	}
	return lockFunc(func(ctx context.Context, key string) (func(context.Context) error, error) {
		_, cancel, err := l.WithContext(ctx, key)
		if err != nil {
			return nil, err
		}
		return func(context.Context) error { cancel(); return nil }, nil // it frees in the background
	}), l.Close, nil
}

// openBare is the least that a lock costs: SET NX PX, and a script that deletes the caller's own
// key. It has nothing to wait for, so it asks every millisecond.
func openBare(addr string) (locker, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	return bare(client), func() { _ = client.Close() }, nil
}

func openPipelined(addr string) (locker, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	pipelined, err := client.AutoPipeline()
	if err != nil {
		return nil, nil, err
	}
	if err := deleteOwn.Load(context.Background(), client).Err(); err != nil { // the pipeline has no fall-back from EVALSHA
		return nil, nil, err
	}
	return bare(pipelined), func() { _, _ = pipelined.Close(), client.Close() }, nil
}

var deleteOwn = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)

func bare(client redis.Cmdable) locker {
	return asking(client, func() time.Duration { return time.Millisecond })
}

// asking asks for a key again after each pause.
func asking(client redis.Cmdable, pause func() time.Duration) locker {
	return lockFunc(func(ctx context.Context, key string) (func(context.Context) error, error) {
		owner := rand.Int64()
		for {
			err := client.SetArgs(ctx, key, owner, redis.SetArgs{Mode: "NX", TTL: ttl}).Err()
			switch {
			case err == nil:
				return func(ctx context.Context) error {
					n, err := deleteOwn.Run(ctx, client, []string{key}, owner).Int()
					if err == nil && n != 1 {
						err = fmt.Errorf("key %q was not held any more", key)
					}
					return err
				}, nil
			case !errors.Is(err, redis.Nil):
				return nil, err
			}
			time.Sleep(pause())
		}
	})
}

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/testutil/internal/server"
)

// before is the binary of peerbench with another version of the kit, a contender of the ordinary
// scenarios. See -before.
var before string

// choice is of so many keys, for each lock.
type choice struct{ pick, keys int }

var (
	choices = []choice{{1, 1}, {1, 4}, {2, 4}, {3, 12}}
	thinks  = []time.Duration{0, 20 * time.Millisecond, 50 * time.Millisecond}
)

// ordinary are the scenarios of what services do every day. A few callers in a few processes hold
// their keys for a while and do something else in between.
func ordinary() (all []scenario) {
	add := func(on string, processes, callers int, open func(*bench) (string, error), ps ...peer) {
		for _, c := range choices {
			for _, think := range thinks {
				all = append(all, ordinaryScenario(on, processes, callers, c, think, open, ps))
			}
		}
	}
	onRedis := []peer{peers[0], polling, {name: "redislock", kind: theirs}}
	for _, shape := range []struct{ processes, callers int }{{3, 3}, {3, 8}, {9, 1}} {
		add(fmt.Sprintf("%dx%d", shape.processes, shape.callers), shape.processes, shape.callers, (*bench).redis, onRedis...)
	}
	for i, open := range []func(*bench) (string, error){etcdAddr, zooKeeperAddr, postgresAddr} {
		add([]string{"etcd", "zookeeper", "table"}[i], 3, 3, open, backendPeers[i])
	}
	return append(all, lone())
}

func ordinaryScenario(on string, n, callers int, c choice, think time.Duration, open func(*bench) (string, error), ps []peer) scenario {
	const hold = 2 * time.Millisecond
	s := scenario{
		name: fmt.Sprintf("ordinary-%s-%dof%d-%v", on, c.pick, c.keys, think),
		about: fmt.Sprintf("%d processes with %d caller(s) each. A caller does something else for about %v, waits for %d of %d keys, chosen at random, and holds them for %v.",
			n, callers, think, c.pick, c.keys, hold),
		columns: []column{{"per s", false}, {"p50 ms", true}, {"p99 ms", true}, {"longest ms", true}, {"Jain", false}},
		open: func(b *bench) ([]contender, error) {
			addr, err := open(b)
			if err != nil {
				return nil, err
			}
			ask := func(o order) func(ctx context.Context, d time.Duration) (sample, error) {
				o.addr, o.key, o.goroutines, o.keys, o.pick, o.hold, o.think = addr, "ordinary", callers, c.keys, c.pick, hold, think
				return func(ctx context.Context, d time.Duration) (sample, error) {
					o.d = d
					reports, err := processes(ctx, n, o)
					if err != nil {
						return nil, err
					}
					t := tally{time: d, waits: merged(reports)}
					for _, r := range reports {
						t.ops += r.Ops
					}
					return sample{t.perSecond(), t.wait(50), t.wait(99), t.wait(100), jain(reports)}, nil
				}
			}
			var cs []contender
			for _, p := range ps {
				cs = append(cs, contender{name: p.name, kind: p.kind, run: ask(order{peer: p.name})})
			}
			if before != "" {
				cs = append(cs, contender{name: "before", kind: reference, run: ask(order{peer: ps[0].name, binary: before})})
			}
			return cs, nil
		},
	}
	switch {
	case len(ps) == 1: // -before is what it is compared with
	case callers == 1:
		s.targets = []target{
			{"throughput at least 0.9 × the best peer", timesBest("onelane", "per s", false), 0.9, 0},
			{"every process gets its share: Jain at least 0.85", func(r result) float64 { return r.of("onelane", "Jain") }, 0.85, 0},
		}
	default:
		s.targets = []target{
			{"throughput at least 0.95 × the best peer", timesBest("onelane", "per s", false), 0.95, 0},
			{"p99 wait at most the best peer's", timesBest("onelane", "p99 ms", true), 0, 1},
			{"p50 wait at most 0.5 ms more than the polling loop's", func(r result) float64 { return r.of("onelane", "p50 ms") - r.of(polling.name, "p50 ms") }, 0, 0.5},
		}
	}
	return s
}

// backendPeers are ours on the other kinds of servers. Their address is for a separate process.
var backendPeers = []peer{
	{"onelane on etcd", ours, true, func(addr string) (locker, func(), error) {
		client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(addr, ","), Logger: zap.NewNop()})
		if err != nil {
			return nil, nil, err
		}
		return oursOn(etcdbackend.New(client), func() { _ = client.Close() })
	}},
	{"onelane on ZooKeeper", ours, true, func(addr string) (locker, func(), error) {
		return oursOn(zkbackend.New(strings.Split(addr, ",")), func() {})
	}},
	{"onelane on PostgreSQL", ours, true, func(dsn string) (locker, func(), error) {
		pool, err := sql.Open("pgx", dsn)
		if err != nil {
			return nil, nil, err
		}
		return oursOn(sqlbackend.New(pool), func() { _ = pool.Close() })
	}},
}

func etcdAddr(b *bench) (string, error) {
	client, err := b.etcd()
	if err != nil {
		return "", err
	}
	return strings.Join(client.Endpoints(), ","), client.Close()
}

func zooKeeperAddr(b *bench) (string, error) {
	addrs, err := b.zookeeper()
	return strings.Join(addrs, ","), err
}

func postgresAddr(b *bench) (string, error) {
	_, closeIt, err := oursOnPostgres(b) // makes the table
	if err != nil {
		return "", err
	}
	closeIt()
	return b.database(database{kind: server.Postgres})
}

// lone: one caller alone wants a key, and others listen who do not wait for it.
func lone() scenario {
	const key = "lone"
	channel, waiters := "onelane:{"+key+"}:free", "onelane:{"+key+"}:wait"
	return scenario{
		name:    "ordinary-lone",
		about:   "One caller locks and unlocks a key that nobody else wants, and somebody else listens. The figures are beside the same without a listener.",
		columns: []column{{"× alone", false}, {"p50 × alone", true}, {"per s", false}},
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			l, closeIt, err := openOurs(addr)
			if err != nil {
				return nil, err
			}
			beside := func(name string, listen func(ctx context.Context) (stop func(), err error)) contender {
				return contender{name: name, kind: ours, run: func(ctx context.Context, d time.Duration) (sample, error) {
					alone, disturbed := tally{waits: newWaits()}, tally{waits: newWaits()}
					measure := func(sum *tally) error {
						t, err := load(ctx, d/8, 1, func(ctx context.Context, _ int) (time.Duration, error) { return cycle(ctx, l, key, nil) })
						sum.ops, sum.time = sum.ops+t.ops, sum.time+t.time
						sum.waits.Merge(t.waits)
						return err
					}
					for range 8 {
						if err := measure(&alone); err != nil {
							return nil, err
						}
						stop, err := listen(ctx)
						if err != nil {
							return nil, err
						}
						err = measure(&disturbed)
						if stop(); err != nil {
							return nil, err
						}
					}
					return sample{disturbed.perSecond() / alone.perSecond(), disturbed.wait(50) / alone.wait(50), disturbed.perSecond()}, nil
				}}
			}
			here, there := redis.NewClient(&redis.Options{Addr: addr}), redis.NewClient(&redis.Options{Addr: addr, DB: 1})
			elsewhere, err1 := newLocker([]redis.UniversalClient{there})
			holder, err2 := newLocker([]redis.UniversalClient{there})
			cs := []contender{
				beside("nobody", func(context.Context) (func(), error) { return func() {}, nil }),
				beside("PSUBSCRIBE *", func(ctx context.Context) (func(), error) {
					sub := here.PSubscribe(ctx, "*")
					_, err := sub.Receive(ctx)
					return func() { _ = sub.Close() }, err
				}),
				beside("a waiter in another database", func(ctx context.Context) (func(), error) {
					k, err := holder.Acquire(ctx, key)
					if err != nil {
						return nil, err
					}
					ctx, cancel := context.WithCancel(ctx)
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						_, _ = elsewhere.Acquire(ctx, key) // until it is canceled
					}()
					listens := func() bool { n, _ := there.SCard(ctx, waiters).Result(); return n > 0 }
					for !listens() && ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
					return func() { cancel(); <-ended; _ = k.Release(context.WithoutCancel(ctx)) }, nil
				}),
				beside("a suspended waiter", func(ctx context.Context) (func(), error) { // what is left of it in Redis
					sub := here.Subscribe(ctx, channel)
					_, err := sub.Receive(ctx)
					return func() { _ = sub.Close() }, errors.Join(err, here.SAdd(ctx, waiters, "suspended 3000").Err())
				}),
			}
			cs[0].close = func() {
				closeIt()
				_, _, _, _ = elsewhere.Close(), holder.Close(), here.Close(), there.Close()
			}
			return cs, errors.Join(err1, err2)
		},
		targets: []target{{"nobody costs it more than 10 %", func(r result) float64 {
			least := math.Inf(1)
			for _, w := range r.Rows {
				least = min(least, w.Median[0])
			}
			return least
		}, 0.9, 0}},
	}
}

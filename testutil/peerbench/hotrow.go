package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
)

// buyer is a way to sell.
type buyer struct {
	name        string
	kind        kind
	connections int // at most; 0: one for each goroutine, as database/sql has it by default
	once        func(ctx context.Context, db *gorm.DB) error
}

// hotRow: one row of stock that everybody wants.
func hotRow(d database, goroutines int) scenario {
	return scenario{
		name: "hot-row-" + d.String(),
		about: fmt.Sprintf("%d goroutines sell from one row of stock in %s: read, decide, write, insert the order, in one transaction by GORM. Connections are unlimited, as by "+
			"default, but where a number is named. Round trips are those to the database, each preparing of a statement included, per sale. "+
			"The local mutex is the most that a lock around the transaction can reach.", goroutines, databases[d.kind].product),
		columns: []column{{"per s", false}, {"p50 ms", true}, {"p99 ms", true}, {"µs CPU", true}, {"round trips", true}},
		note:    func(ctx context.Context, b *bench) (string, error) { return b.durability(ctx, d) },
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			goroutines := goroutines
			if b.short {
				goroutines = min(goroutines, 16) // each ends what it is at when the time is over
			}
			client := redis.NewClient(&redis.Options{Addr: addr})
			l, err := newLocker([]redis.UniversalClient{client})
			if err != nil {
				return nil, err
			}
			var cs []contender
			for _, s := range sellers(client) {
				cs = append(cs, contender{name: s.name, kind: s.kind, run: func(ctx context.Context, t time.Duration) (sample, error) {
					var sent statements
					db, err := openGORM(b, d, s.connections, &sent) // anew, as their connections together are too many
					if err != nil {
						return nil, err
					}
					defer closeGORM(db)
					if s.kind == ours {
						if err := db.Use(gormlock.New(l)); err != nil {
							return nil, err
						}
					}
					meter := func() spent { return spent{b.allCPU(d), sent.n.Load()} }
					once := func(ctx context.Context) error { return s.once(ctx, db) }
					sold, err := sales(ctx, meter, db, t, goroutines, once)
					return sample{sold.perSecond(), sold.wait(50), sold.wait(99), sold.cpu, sold.trips}, err
				}})
			}
			cs[0].close = func() { _, _ = l.Close(), client.Close() }
			return cs, nil
		},
		targets: []target{
			{"Guard: at least 2 × FOR UPDATE", times("gormlock.Guard", forUpdateName, "per s"), 2, 0},
			{"Transaction: at least 2 × FOR UPDATE", times("gormlock.Transaction", forUpdateName, "per s"), 2, 0},
		},
		limits: map[string]string{"gormlock.Guard": mutexName, "gormlock.Transaction": mutexName},
	}
}

const (
	forUpdateName = "SELECT … FOR UPDATE"
	mutexName     = "local mutex"
)

func sellers(client redis.UniversalClient) []buyer {
	rs := redsyncOn(redsync.New(goredis.NewPool(client)))
	var local sync.Mutex
	transaction := func(fn func(*gorm.DB) error) func(context.Context, *gorm.DB) error {
		return func(ctx context.Context, db *gorm.DB) error { return db.WithContext(ctx).Transaction(fn) }
	}
	return []buyer{
		{name: forUpdateName, kind: theirs, once: transaction(sellForUpdate)},
		{name: "… FOR UPDATE, 16 connections", kind: reference, connections: 16, once: transaction(sellForUpdate)},
		{name: "conditional UPDATE", kind: reference, once: transaction(sellConditionally)},
		{name: "redsync around the transaction", kind: theirs, once: func(ctx context.Context, db *gorm.DB) error {
			unlock, err := rs.lock(ctx, stockKey)
			if err != nil {
				return err
			}
			return errors.Join(db.WithContext(ctx).Transaction(sell), unlock(ctx))
		}},
		{name: mutexName, kind: reference, once: func(ctx context.Context, db *gorm.DB) error {
			local.Lock()
			defer local.Unlock()
			return db.WithContext(ctx).Transaction(sell)
		}},
		{name: "gormlock.Guard", kind: ours, once: func(ctx context.Context, db *gorm.DB) error {
			return db.WithContext(ctx).Scopes(gormlock.Guard(stockKey)).Transaction(sell)
		}},
		{name: "gormlock.Transaction", kind: ours, once: func(ctx context.Context, db *gorm.DB) error {
			return gormlock.Transaction(db.WithContext(ctx), stockKey, sell)
		}},
	}
}

// spent is what was used so far: CPU time of all that take part, in s, and round trips to the
// database.
type spent struct {
	cpu   float64
	trips int64
}

// sold is what a way to sell achieves, and what one sale takes: CPU time in µs, and round trips.
type sold struct {
	tally
	cpu, trips float64
}

// sales measures once.
func sales(ctx context.Context, meter func() spent, db *gorm.DB, d time.Duration, goroutines int, once func(context.Context) error) (sold, error) {
	if err := restock(db, stockStart); err != nil {
		return sold{}, err
	}
	op := func(ctx context.Context, _ int) (time.Duration, error) {
		began := time.Now()
		err := once(ctx)
		return time.Since(began), err
	}
	warm, err := load(ctx, d/5, goroutines, op) // connections
	if err != nil {
		return sold{}, err
	}
	before := meter()
	t, err := load(ctx, d, goroutines, op)
	after := meter()
	if err == nil {
		err = balance(db, warm.held+t.held)
	}
	return sold{t, perOp(after.cpu-before.cpu, t), float64(after.trips-before.trips) / float64(max(t.held, 1))}, err
}

// perOp is the share of one operation in µs, of so many s.
func perOp(cpu float64, t tally) float64 { return cpu * 1e6 / float64(max(t.held, 1)) }

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

const (
	sealedName     = "gormlock.Transaction, sealed"
	rememberedName = "gormlock.Transaction, sealed and remembered for 100 ms"
)

// soldOut: nothing is left, and buyers keep coming.
func soldOut(on database, goroutines int) scenario {
	return scenario{
		name: "sold-out-" + on.String(),
		about: fmt.Sprintf("%d goroutines try to buy what is sold out in %s, 100 connections: turned away by the seal that the last buyer left, or after a look into the database. "+
			"Statements are what the driver is asked to send, BEGIN and ROLLBACK included. "+
			"CPU is that of the service, Redis and the database together, per attempt.", goroutines, databases[on.kind].product),
		columns: []column{{"per s", false}, {"p99 ms", true}, {"statements", true}, {"µs CPU", true}},
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			client := redis.NewClient(&redis.Options{Addr: addr})
			var sent statements
			l, err := newLocker([]redis.UniversalClient{client})
			if err != nil {
				return nil, err
			}
			var dbs [2]*gorm.DB // the second remembers seals
			for i, opts := range [][]gormlock.Option{nil, {gormlock.RememberSeals(100 * time.Millisecond)}} {
				if dbs[i], err = openGORM(b, on, 100, &sent); err == nil {
					err = dbs[i].Use(gormlock.New(l, opts...))
				}
				if err != nil {
					return nil, err
				}
			}
			if err := restock(dbs[0], 0); err != nil {
				return nil, err
			}
			guarded := func(db *gorm.DB, opts ...gormlock.DecrementOption) func(context.Context) error {
				return func(ctx context.Context) error {
					return gormlock.Transaction(db.WithContext(ctx), stockKey, func(tx *gorm.DB) error {
						if _, err := gormlock.Decrement(tx.Model(&stock{}).Where("sku = ?", stockSKU), "remaining", 1, opts...); err != nil {
							return err
						}
						return tx.Create(&sale{SKU: stockSKU}).Error
					})
				}
			}
			seals := gormlock.SealWhenOut(time.Minute)
			attempt := func(name string, who kind, expected error, once func(context.Context) error) contender {
				return contender{name: name, kind: who, run: func(ctx context.Context, d time.Duration) (sample, error) {
					if err := l.Unseal(ctx, stockKey); err != nil {
						return nil, err
					}
					op := func(ctx context.Context, _ int) (time.Duration, error) {
						began := time.Now()
						if err := once(ctx); !errors.Is(err, expected) {
							return 0, fmt.Errorf("an attempt ended with %v instead of %v", err, expected)
						}
						return time.Since(began), nil
					}
					_ = once(ctx) // seals, if it does
					if _, err := load(ctx, d/5, goroutines, op); err != nil {
						return nil, err
					}
					before, cpu := sent.n.Load(), b.allCPU(on)
					t, err := load(ctx, d, goroutines, op)
					return sample{t.perSecond(), t.wait(99), float64(sent.n.Load()-before) / float64(t.held), perOp(b.allCPU(on)-cpu, t)}, err
				}}
			}
			transaction := func(fn func(*gorm.DB) error) func(context.Context) error {
				return func(ctx context.Context) error { return dbs[0].WithContext(ctx).Transaction(fn) }
			}
			cs := []contender{
				attempt(sealedName, ours, core.ErrSealed, guarded(dbs[0], seals)),
				attempt(rememberedName, ours, core.ErrSealed, guarded(dbs[1], seals)),
				attempt("gormlock.Transaction", ours, gormlock.ErrInsufficient, guarded(dbs[0])),
				attempt(forUpdateName, theirs, errSoldOut, transaction(sellForUpdate)),
				attempt("conditional UPDATE", reference, errSoldOut, transaction(sellConditionally)),
			}
			cs[0].close = func() {
				for _, db := range dbs {
					closeGORM(db)
				}
				_, _ = l.Close(), client.Close()
			}
			return cs, nil
		},
		targets: []target{
			{"sealed: at least 50 × an unsealed guarded attempt", times(sealedName, "gormlock.Transaction", "per s"), 50, 0},
			{"sealed and remembered: at least 50 × an unsealed guarded attempt", times(rememberedName, "gormlock.Transaction", "per s"), 50, 0},
			{"sealed: at most 1/50 of the CPU of an unsealed guarded attempt", times(sealedName, "gormlock.Transaction", "µs CPU"), 0, 0.02},
			{"sealed: no statement", func(r result) float64 { return r.of(sealedName, "statements") }, 0, 0},
		},
	}
}

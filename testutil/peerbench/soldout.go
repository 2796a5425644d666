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
	"github.com/onelane/onelane/testutil/internal/server"
)

const (
	sealedName     = "gormlock.Transaction, sealed"
	rememberedName = "… sealed, and remembered for 100 ms"
)

// soldOut: nothing is left, and buyers keep coming.
func soldOut(database server.Kind, goroutines int) scenario {
	return scenario{
		name: "sold-out-" + string(database),
		about: fmt.Sprintf("%d goroutines try to buy what is sold out in %s, 100 connections: turned away by the seal that the last buyer left, or after a look into the database. "+
			"Statements are what the driver is asked to send, BEGIN and ROLLBACK included.", goroutines, product[database]),
		columns: []column{{"per s", false}, {"p99 ms", true}, {"statements", true}},
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			client := redis.NewClient(&redis.Options{Addr: addr})
			var sent statements
			var dbs [2]*gorm.DB
			var lockers [2]*core.Locker // the second remembers seals
			for i, opts := range [][]core.Option{nil, {core.WithSealMemory(100 * time.Millisecond)}} {
				l, err1 := newLocker([]redis.UniversalClient{client}, opts...)
				db, err2 := openGORM(b, database, 100, &sent)
				if err := errors.Join(err1, err2); err != nil {
					return nil, err
				}
				if err := db.Use(gormlock.New(l)); err != nil {
					return nil, err
				}
				dbs[i], lockers[i] = db, l
			}
			if err := restock(dbs[0], 0); err != nil {
				return nil, err
			}
			guarded := func(db *gorm.DB) func(context.Context) error {
				return func(ctx context.Context) error { return gormlock.Transaction(db.WithContext(ctx), stockKey, sell) }
			}
			attempt := func(name string, who kind, seal bool, expected error, once func(context.Context) error) contender {
				return contender{name: name, kind: who, run: func(ctx context.Context, d time.Duration) (sample, error) {
					if err := sealed(ctx, lockers[0], seal); err != nil {
						return nil, err
					}
					op := func(ctx context.Context, _ int) (time.Duration, error) {
						began := time.Now()
						if err := once(ctx); !errors.Is(err, expected) {
							return 0, fmt.Errorf("an attempt ended with %v instead of %v", err, expected)
						}
						return time.Since(began), nil
					}
					if _, err := load(ctx, d/5, goroutines, op); err != nil {
						return nil, err
					}
					before := sent.n.Load()
					t, err := load(ctx, d, goroutines, op)
					return sample{t.perSecond(), t.wait(99), float64(sent.n.Load()-before) / float64(t.held)}, err
				}}
			}
			transaction := func(fn func(*gorm.DB) error) func(context.Context) error {
				return func(ctx context.Context) error { return dbs[0].WithContext(ctx).Transaction(fn) }
			}
			cs := []contender{
				attempt(sealedName, ours, true, core.ErrSealed, guarded(dbs[0])),
				attempt(rememberedName, ours, true, core.ErrSealed, guarded(dbs[1])),
				attempt("gormlock.Transaction", ours, false, errSoldOut, guarded(dbs[0])),
				attempt(forUpdateName, theirs, false, errSoldOut, transaction(sellForUpdate)),
				attempt("conditional UPDATE", reference, false, errSoldOut, transaction(sellConditionally)),
			}
			cs[0].close = func() {
				for i := range dbs {
					closeGORM(dbs[i])
					_ = lockers[i].Close()
				}
				_ = client.Close()
			}
			return cs, nil
		},
		targets: []target{
			{"sealed: at least 50 × an unsealed guarded attempt", times(sealedName, "gormlock.Transaction", "per s"), 50, 0},
			{"sealed and remembered: at least 50 × an unsealed guarded attempt", times(rememberedName, "gormlock.Transaction", "per s"), 50, 0},
			{"sealed: no statement", func(r result) float64 { return r.of(sealedName, "statements") }, 0, 0},
		},
	}
}

// sealed seals the key of the stock, or frees it.
func sealed(ctx context.Context, l *core.Locker, seal bool) error {
	if err := l.Unseal(ctx, stockKey); err != nil || !seal {
		return err
	}
	k, err := l.Acquire(ctx, stockKey)
	if err != nil {
		return err
	}
	return k.Seal(ctx, []byte("sold out"), time.Minute)
}

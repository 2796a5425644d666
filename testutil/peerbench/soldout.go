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

const sealedName = "gormlock.Transaction, sealed"

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
			l, err := newLocker([]redis.UniversalClient{client})
			if err != nil {
				return nil, err
			}
			var sent statements
			db, err := openGORM(b, database, 100, &sent)
			if err == nil {
				err = errors.Join(db.Use(gormlock.New(l)), restock(db, 0))
			}
			if err != nil {
				return nil, err
			}
			guarded := func(ctx context.Context) error { return gormlock.Transaction(db.WithContext(ctx), stockKey, sell) }
			attempt := func(name string, who kind, seal bool, expected error, once func(context.Context) error) contender {
				return contender{name: name, kind: who, run: func(ctx context.Context, d time.Duration) (sample, error) {
					if err := sealed(ctx, l, seal); err != nil {
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
				return func(ctx context.Context) error { return db.WithContext(ctx).Transaction(fn) }
			}
			cs := []contender{
				attempt(sealedName, ours, true, core.ErrSealed, guarded),
				attempt("gormlock.Transaction", ours, false, errSoldOut, guarded),
				attempt(forUpdateName, theirs, false, errSoldOut, transaction(sellForUpdate)),
				attempt("conditional UPDATE", reference, false, errSoldOut, transaction(sellConditionally)),
			}
			cs[0].close = func() { closeGORM(db); _, _ = l.Close(), client.Close() }
			return cs, nil
		},
		targets: []target{
			{"sealed: at least 50 × an unsealed guarded attempt", times(sealedName, "gormlock.Transaction", "per s"), 50, 0},
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

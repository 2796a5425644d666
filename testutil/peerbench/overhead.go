package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
)

// overhead: what the plugin costs statements that have nothing to do with it.
func overhead(on database) scenario {
	s := scenario{
		name: "overhead-" + on.String(),
		about: fmt.Sprintf("Statements without a guard in %s, by one goroutine on one connection, with the plugin and without it in turn, in small batches: how much "+
			"the median with it is over that without.", databases[on.kind].product),
		columns: []column{{"overhead %", true}, {"µs with", true}, {"µs without", true}},
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
			pool, err := openPool(b, on, 1, &statements{})
			if err != nil {
				return nil, err
			}
			with, err1 := gormOn(pool, on)
			without, err2 := gormOn(pool, on) // two connections differ by more than what is measured
			if err := errors.Join(err1, err2); err != nil {
				return nil, err
			}
			if err := errors.Join(with.Use(gormlock.New(l)), restock(with, stockStart)); err != nil {
				return nil, err
			}
			compare := func(name string, statement func(*gorm.DB) error) contender {
				return contender{name: name, kind: ours, run: func(ctx context.Context, d time.Duration) (sample, error) {
					return pairs(d, func() error { return statement(with) }, func() error { return statement(without) })
				}}
			}
			cs := []contender{
				compare("SELECT", func(db *gorm.DB) error { return db.First(&stock{}, stockSKU).Error }),
				compare("UPDATE", func(db *gorm.DB) error {
					return db.Model(&stock{}).Where("sku = ?", stockSKU).Update("remaining", gorm.Expr("remaining - 1")).Error
				}),
				compare("a transaction of two", func(db *gorm.DB) error { return db.Transaction(sellConditionally) }),
			}
			cs[0].close = func() { closeGORM(with); _, _ = l.Close(), client.Close() }
			return cs, nil
		},
	}
	for _, name := range []string{"SELECT", "UPDATE", "a transaction of two"} {
		s.targets = append(s.targets, target{name + ": at most 2 % slower", func(r result) float64 { return r.of(name, "overhead %") }, 0, 2})
	}
	return s
}

// pairs runs a and b in small batches in turn, each pair in the other order than the one before.
func pairs(d time.Duration, a, b func() error) (sample, error) {
	const batch = 4
	timed := func(fn func() error) (float64, error) {
		began := time.Now()
		for range batch {
			if err := fn(); err != nil {
				return 0, err
			}
		}
		return float64(time.Since(began)) / 1e3 / batch, nil
	}
	var as, bs []float64
	for end, swap := time.Now().Add(3*d), false; time.Now().Before(end) || len(as) == 0; swap = !swap {
		first, second := a, b
		if swap {
			first, second = b, a
		}
		x, err1 := timed(first)
		y, err2 := timed(second)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		if swap {
			x, y = y, x
		}
		as, bs = append(as, x), append(bs, y)
	}
	with, without := median(sorted(as)), median(sorted(bs))
	return sample{100 * (with/without - 1), with, without}, nil
}

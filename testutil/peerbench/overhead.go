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

const pausedName = "… 0.1 ms after the one before"

// overhead: what the plugin costs statements that have nothing to do with it.
func overhead(on database) scenario {
	s := scenario{
		name: "overhead-" + on.String(),
		about: fmt.Sprintf("Statements without a guard in %s, by one goroutine on one connection, with the plugin and without it in turn, in small batches: how much "+
			"the median with it is over that without. In a transaction the plugin sends BEGIN with the first statement, some µs later than GORM: a MariaDB thread that "+
			"has just answered a COMMIT may sleep by then, which is seen only where the transactions come one right after the other.", databases[on.kind].product),
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
			compare := func(name string, pause time.Duration, statement func(*gorm.DB) error) contender {
				return contender{name: name, kind: ours, run: func(ctx context.Context, d time.Duration) (sample, error) {
					return pairs(d, pause, func() error { return statement(with) }, func() error { return statement(without) })
				}}
			}
			transaction := func(db *gorm.DB) error { return db.Transaction(sellConditionally) }
			cs := []contender{
				compare("SELECT", 0, func(db *gorm.DB) error { return db.First(&stock{}, stockSKU).Error }),
				compare("UPDATE", 0, func(db *gorm.DB) error {
					return db.Model(&stock{}).Where("sku = ?", stockSKU).Update("remaining", gorm.Expr("remaining - 1")).Error
				}),
				compare("a transaction of two", 0, transaction),
				compare(pausedName, 100*time.Microsecond, transaction),
			}
			cs[0].close = func() { closeGORM(with); _, _ = l.Close(), client.Close() }
			return cs, nil
		},
	}
	for _, name := range []string{"SELECT", "UPDATE", "a transaction of two", pausedName} {
		s.targets = append(s.targets, target{name + ": at most 2 % slower", func(r result) float64 { return r.of(name, "overhead %") }, 0, 2})
	}
	return s
}

// pairs runs a and b in small batches in turn, each pair in the other order than the one before. It
// keeps the processor busy for the pause before each run, which is not counted.
func pairs(d, pause time.Duration, a, b func() error) (sample, error) {
	const batch = 4
	timed := func(fn func() error) (float64, error) {
		var took time.Duration
		for range batch {
			for ended := time.Now(); time.Since(ended) < pause; {
			}
			began := time.Now()
			if err := fn(); err != nil {
				return 0, err
			}
			took += time.Since(began)
		}
		return float64(took) / 1e3 / batch, nil
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

package stock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock/stock"
)

// Random is an order whose hook does what its kind says.
type Random struct {
	ID    int64 `gorm:"primaryKey"`
	SKU   int64 `gorm:"uniqueIndex:one"`
	Buyer int64 `gorm:"uniqueIndex:one"`
	N     int64 `gorm:"check:n < 1000"`
	Kind  int   `gorm:"-"`
}

// The kinds of orders.
const (
	good = iota
	refusedByCheck
	refusedByHook
	panics
	kinds
)

func (r *Random) BeforeCreate(*gorm.DB) error {
	switch r.Kind {
	case refusedByHook:
		return errHook
	case panics:
		panic("random")
	}
	return nil
}

// TestSale_Random: random schedules of quantities, refusals, repeats, contexts and panics against a
// model of the books.
func TestSale_Random(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		schedules := 40
		if long {
			schedules = 600
		}
		if n, err := strconv.Atoi(os.Getenv("ONELANE_SCHEDULES")); err == nil {
			schedules = n
		}
		fresh(t, db, 0, &Random{})
		seed := rand.Uint64()
		for i := range schedules {
			if !t.Run("", func(t *testing.T) { randomSchedule(t, db, rand.New(rand.NewPCG(seed, uint64(i)))) }) {
				t.Fatalf("schedule %d of seed %d", i, seed)
			}
		}
	})
}

// randomSchedule sells to a few callers and compares their results with what is stored.
func randomSchedule(t *testing.T, db *gorm.DB, r *rand.Rand) {
	stocked := r.Int64N(60)
	ok(t, "Delete", db.Where("1 = 1").Delete(&Random{}).Error)
	ok(t, "Update", db.Model(&Stock{}).Where("sku = 42").Update("remaining", stocked).Error)
	opts := []stock.Option{stock.Remember(0), stock.Batch(1 << r.IntN(7))}
	if r.IntN(4) > 0 {
		opts = append(opts, unique)
	}
	s := newSale[Random](t, db, opts...)
	buyers, most := 1+r.Int64N(60), 1+r.Int64N(5)
	type result struct {
		n, left int64
		order   *Random
		given   Random
		err     error
		panic   any
		context bool
	}
	var all []*result
	for range 1 + r.IntN(50) {
		x := &result{n: 1 + r.Int64N(most), order: &Random{SKU: 42, Buyer: r.Int64N(buyers)}, context: r.IntN(10) == 0}
		if r.IntN(5) == 0 {
			x.order.Kind = r.IntN(kinds)
		}
		if x.order.Kind == refusedByCheck {
			x.order.N = 5000
		}
		x.given = *x.order
		all = append(all, x)
	}
	var release func()
	if r.IntN(2) == 0 {
		release = stock.Hold(s)
	}
	var wg sync.WaitGroup
	for _, x := range all {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		wg.Go(func() {
			defer func() { x.panic = recover() }()
			x.left, x.err = s.Sell(ctx, 42, x.n, x.order)
		})
		if x.context {
			wg.Go(cancel)
		}
	}
	if release != nil {
		release()
	}
	wg.Wait()
	taken := int64(0)
	lefts := make(map[int64]bool)
	sold := make(map[int64]*result)
	for _, x := range all {
		if x.err != nil || x.panic != nil {
			continue
		}
		if x.order.Kind != good || sold[x.order.Buyer] != nil || lefts[x.left] {
			t.Errorf("it must not succeed: %+v", *x)
		}
		taken += x.n
		sold[x.order.Buyer], lefts[x.left] = x, true
	}
	for _, x := range all {
		name := fmt.Sprintf("stocked %d, sold %d: %+v", stocked, taken, *x)
		switch {
		case x.err == nil && x.panic == nil:
			var stored Random
			ok(t, name, db.Take(&stored, x.order.ID).Error)
			if stored.Buyer != x.order.Buyer || x.left < 0 || x.left > stocked-x.n {
				t.Errorf("%s is stored as %+v", name, stored)
			}
			continue
		case x.panic != nil && x.order.Kind == panics:
		case errors.Is(x.err, stock.ErrDuplicate), x.order.Kind == good && isUniqueError(x.err):
			if sold[x.order.Buyer] == nil {
				t.Errorf("a duplicate of nobody: %s", name)
			}
		case errors.Is(x.err, stock.ErrInsufficient):
			if short, _ := errors.AsType[*stock.InsufficientError](x.err); short.Left >= x.n || short.Left > stocked {
				t.Errorf("it says that %d are left: %s", short.Left, name)
			}
		case errors.Is(x.err, context.Canceled) && x.context:
		case x.order.Kind == refusedByHook && errors.Is(x.err, errHook), x.order.Kind == refusedByCheck && x.err != nil:
		default:
			t.Errorf("%s", name)
		}
		if *x.order != x.given {
			t.Errorf("after an error the order is changed: %s", name)
		}
	}
	if rest, n := left(t, db), count[Random](t, db); rest != stocked-taken || n != int64(len(sold)) {
		t.Errorf("stocked %d, sold %d in %d orders; left %d, stored %d", stocked, taken, len(sold), rest, n)
	}
}

package stock_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock/stock"
)

// books are what a row and its orders must be, kept by a few lines that anybody can check.
type books struct {
	left   int64
	open   bool
	orders map[int64]int64 // the quantity of each buyer
}

// sell returns what a call must get: the quantity left, or one of some errors. A refused order has
// any error that its own faults allow.
func (b *books) sell(buyer, n int64, refused bool) (left int64, errs []error) {
	if !b.open {
		return 0, []error{stock.ErrClosed}
	}
	if _, again := b.orders[buyer]; again {
		errs = append(errs, stock.ErrDuplicate)
	}
	if n > b.left {
		errs = append(errs, stock.ErrInsufficient)
	}
	if refused {
		errs = append(errs, errHook)
	}
	if errs == nil {
		b.left -= n
		b.orders[buyer] = n
	}
	return b.left, errs
}

// TestSale_Model: random steps give what a simple model of the books says. The steps are batches of
// buyers, a sale that closes and opens, restocks by SQL, and orders that are canceled.
func TestSale_Model(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		runs := 8
		if long {
			runs = 300
		}
		seed := rand.Uint64()
		fresh(t, db, 0, &Random{})
		for i := range runs {
			modelRun(t, db, rand.New(rand.NewPCG(seed, uint64(i))))
			if t.Failed() {
				t.Fatalf("run %d of seed %d", i, seed)
			}
		}
	})
}

func modelRun(t *testing.T, db *gorm.DB, r *rand.Rand) {
	b := &books{left: r.Int64N(40), open: true, orders: make(map[int64]int64)}
	row := db.Model(&Stock{}).Where("sku = 42").Session(&gorm.Session{})
	ok(t, "Delete", db.Where("1 = 1").Delete(&Random{}).Error)
	ok(t, "Updates", row.Updates(map[string]any{"remaining": b.left, "state": "open"}).Error)
	s := newSale[Random](t, db, unique, stock.Remember(0), stock.If("state = ?", "open"), stock.Batch(1<<r.IntN(5)))
	for range 1 + r.IntN(10) {
		switch r.IntN(6) {
		case 0:
			n := r.Int64N(20)
			b.left += n
			ok(t, "restock", row.UpdateColumn("remaining", gorm.Expr("remaining + ?", n)).Error)
		case 1:
			b.open = !b.open
			ok(t, "state", row.Update("state", map[bool]string{true: "open", false: "closed"}[b.open]).Error)
		case 2:
			for buyer, n := range b.orders {
				b.left += n
				delete(b.orders, buyer)
				ok(t, "cancel", db.Transaction(func(tx *gorm.DB) error {
					return errors.Join(tx.Where("buyer = ?", buyer).Delete(&Random{}).Error,
						tx.Model(&Stock{}).Where("sku = 42").UpdateColumn("remaining", gorm.Expr("remaining + ?", n)).Error)
				}))
				break
			}
		default:
			modelBatch(t, db, r, s, b)
		}
		if rest, n := left(t, db), count[Random](t, db); rest != b.left || n != int64(len(b.orders)) {
			t.Errorf("%d are left and %d orders stored, want %+v", rest, n, *b)
		}
		if t.Failed() {
			return
		}
	}
}

// modelBatch sells to some buyers who come in one order, each once.
func modelBatch(t *testing.T, db *gorm.DB, r *rand.Rand, s *stock.Sale[Stock, Random], b *books) {
	var all []*Random
	quantities := make([]int64, 0, 12)
	for _, buyer := range r.Perm(30)[:1+r.IntN(12)] {
		o := &Random{SKU: 42, Buyer: int64(buyer)}
		if r.IntN(8) == 0 {
			o.Kind = refusedByHook
		}
		all, quantities = append(all, o), append(quantities, 1+r.Int64N(6))
	}
	before := fmt.Sprintf("%+v", *b)
	for i, x := range together(t, db, s, func(i int) int64 { return quantities[i] }, all...) {
		rest, errs := b.sell(x.order.Buyer, quantities[i], x.order.Kind != good)
		matches := len(errs) == 0 && x.err == nil && x.left == rest
		for _, err := range errs {
			matches = matches || errors.Is(x.err, err)
		}
		if short, is := errors.AsType[*stock.InsufficientError](x.err); is && short.Left >= short.N {
			matches = false
		}
		if !matches {
			t.Errorf("books %s: call %d for %d: %v; want left %d or %v", before, i, quantities[i], x, rest, errs)
		}
	}
}

package stock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock/stock"
)

func TestSale(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 5, &Order{})
		s := newSale[Order](t, db, unique)
		for i, expected := range []int64{4, 3} {
			o := &Order{SKU: 42, Buyer: int64(i)}
			rest, err := s.Sell(t.Context(), 42, 1, o)
			if ok(t, "Sell", err); rest != expected {
				t.Errorf("%d are left, want %d", rest, expected)
			}
			var stored Order
			ok(t, "Take", db.Take(&stored, o.ID).Error)
			if stored != *o {
				t.Errorf("stored %+v, told %+v", stored, *o)
			}
		}
		_, err := s.Sell(t.Context(), 42, 1, &Order{SKU: 42, Buyer: 1})
		want(t, "a repeat", err, stock.ErrDuplicate)
		_, err = s.Sell(t.Context(), 42, 4, &Order{SKU: 42, Buyer: 3})
		want(t, "too many", err, stock.ErrInsufficient)
		if short, _ := errors.AsType[*stock.InsufficientError](err); short.Left != 3 {
			t.Errorf("it says that %d are left", short.Left)
		}
		_, err = s.Sell(t.Context(), 99, 1, &Order{SKU: 99, Buyer: 3})
		want(t, "no row", err, gorm.ErrRecordNotFound)
		wantBooks[Order](t, db, 5, 2)
	})
}

func TestSale_ForgetsConditions(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 5, &Order{})
		s := newSale[Order](t, db.Where("remaining < 0").Omit("buyer").Limit(0))
		o := Order{SKU: 42, Buyer: 7}
		_, err := s.Sell(t.Context(), 42, 1, &o)
		ok(t, "Sell", err)
		ok(t, "Take", db.Take(&o, o.ID).Error)
		if o.Buyer != 7 {
			t.Errorf("Omit of the database that NewSale got dropped the buyer: %+v", o)
		}
		wantBooks[Order](t, db, 5, 1)
	})
}

func TestSale_Books(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		const stocked, callers, each = 500, 40, 40
		fresh(t, db, stocked, &Order{})
		s := newSale[Order](t, db, unique)
		var sold, repeats, out atomic.Int64
		var wg sync.WaitGroup
		for caller := range callers {
			wg.Go(func() {
				for i := range each {
					buyer := int64(caller*each + i)
					if i%3 == 0 {
						buyer = int64(i)
					}
					_, err := s.Sell(context.Background(), 42, 1, &Order{SKU: 42, Buyer: buyer})
					switch {
					case err == nil:
						sold.Add(1)
					case errors.Is(err, stock.ErrDuplicate):
						repeats.Add(1)
					case errors.Is(err, stock.ErrInsufficient):
						out.Add(1)
					default:
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if sold.Load() != stocked || repeats.Load() == 0 || out.Load() == 0 {
			t.Errorf("sold %d, repeats %d, out %d", sold.Load(), repeats.Load(), out.Load())
		}
		wantBooks[Order](t, db, stocked, stocked)
	})
}

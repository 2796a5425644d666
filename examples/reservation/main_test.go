package main

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/testutil"
)

func TestRun(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	const want = `ann reserves 2: <nil>
ben reserves 1: <nil>
cem is too late: true
ben pays: <nil>
ann pays after 16 minutes: order ann: the reservation has expired or was canceled
the sweep: <nil>
dan reserves 2: <nil>
dan pays: <nil>
`
	if out.String() != want {
		t.Errorf("it says\n%swant\n%s", out.String(), want)
	}
}

// sale is a shop with a clock that tests turn.
type sale struct {
	shop
	clock atomic.Int64 // milliseconds
}

// onSale runs fn on each database, with so many units of 42.
func onSale(t *testing.T, units int64, fn func(t *testing.T, s *sale)) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		pool, err := db.DB()
		ok(t, "DB", err)
		pool.SetMaxOpenConns(16)
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Reservation{}))
		ok(t, "Create", db.Create(&Stock{SKU: 42, Remaining: units}).Error)
		s := &sale{}
		made, err := newShop(db, time.Minute, func() time.Time { return time.UnixMilli(s.clock.Load()) })
		ok(t, "newShop", err)
		s.shop = *made
		fn(t, s)
	})
}

func ok(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// remaining is what is on sale.
func (s *sale) remaining(t *testing.T) int64 {
	t.Helper()
	var row Stock
	ok(t, "Take", s.db.Take(&row, 42).Error)
	return row.Remaining
}

// units are how many units are in a state.
func (s *sale) units(t *testing.T, state string) (n int64) {
	t.Helper()
	ok(t, "Scan", s.db.Model(&Reservation{}).Where("state = ?", state).Select("COALESCE(SUM(units), 0)").Scan(&n).Error)
	return n
}

// TestSale_BooksBalance: 200 buyers reserve; some pay, some cancel, the others crash. Then the sweeps
// of three processes run against late payments, and what came back is sold again.
func TestSale_BooksBalance(t *testing.T) {
	const units = 120
	onSale(t, units, func(t *testing.T, s *sale) {
		var mu sync.Mutex
		paid, crashed := map[string]int64{}, map[string]int64{}
		var buyers sync.WaitGroup
		for i := range 200 {
			id, units := fmt.Sprint("buyer ", i), int64(1+i%2)
			buyers.Go(func() {
				err := s.reserve(t.Context(), id, 42, units)
				again := s.reserve(t.Context(), id, 42, units) // a second click
				switch {
				case err == nil && again != nil:
					t.Errorf("%s: it was reserved, and then %v", id, again)
				case again == nil: // the second click may have more luck
				case errors.Is(again, stock.ErrInsufficient):
					return
				default:
					t.Errorf("%s: %v", id, again)
					return
				}
				switch i % 5 {
				case 0, 1:
					if err := s.confirm(t.Context(), id); err != nil {
						t.Errorf("%s pays in time: %v", id, err)
					}
					mu.Lock()
					paid[id] = units
					mu.Unlock()
				case 2:
					if err := s.cancel(t.Context(), id); err != nil {
						t.Errorf("%s cancels: %v", id, err)
					}
				default:
					mu.Lock()
					crashed[id] = units
					mu.Unlock()
				}
			})
		}
		buyers.Wait()
		if out := s.units(t, reserved) + s.units(t, confirmed); s.remaining(t)+out != units || s.remaining(t) < 0 {
			t.Fatalf("%d units are out and %d remain of %d", out, s.remaining(t), units)
		}

		// The clocks of the processes that sweep are ahead of those that confirm.
		ahead := s.shop
		ahead.now = func() time.Time { return s.shop.now().Add(time.Minute) }
		for range 3 {
			buyers.Go(func() {
				for range 3 {
					if err := ahead.sweep(t.Context()); err != nil {
						t.Errorf("sweep: %v", err)
					}
				}
			})
		}
		for id, units := range crashed {
			buyers.Go(func() {
				switch err := s.confirm(t.Context(), id); {
				case err == nil:
					mu.Lock()
					paid[id] = units
					mu.Unlock()
				case !errors.Is(err, errExpired):
					t.Errorf("%s pays late: %v", id, err)
				}
			})
		}
		buyers.Wait()
		ok(t, "sweep", ahead.sweep(t.Context()))
		var sum int64
		for _, units := range paid {
			sum += units
		}
		if sold, open := s.units(t, confirmed), s.units(t, reserved); sold != sum || open != 0 || s.remaining(t)+sold != units {
			t.Fatalf("%d were paid for, %d are sold, %d reserved and %d remain of %d", sum, sold, open, s.remaining(t), units)
		}

		for i := 0; s.remaining(t) > 0; i++ {
			id := fmt.Sprint("later buyer ", i)
			ok(t, "reserve", s.reserve(t.Context(), id, 42, 1))
			ok(t, "confirm", s.confirm(t.Context(), id))
		}
		if sold := s.units(t, confirmed); sold != units {
			t.Errorf("%d were sold of %d", sold, units)
		}
	})
}

// TestSale_OneOutcome: a reservation is confirmed or returned, and its units come back once.
func TestSale_OneOutcome(t *testing.T) {
	onSale(t, 10, func(t *testing.T, s *sale) {
		ctx := t.Context()
		for _, id := range []string{"paid", "late", "canceled"} {
			ok(t, "reserve", s.reserve(ctx, id, 42, 3))
		}
		if err := s.reserve(ctx, "paid", 42, 2); err == nil {
			t.Error("an order was used for another quantity")
		}
		want := func(what string, err, target error) {
			t.Helper()
			if !errors.Is(err, target) {
				t.Errorf("%s: got %v, want %v", what, err, target)
			}
		}
		for range 2 { // each may be repeated
			want("confirm", s.confirm(ctx, "paid"), nil)
			want("cancel", s.cancel(ctx, "canceled"), nil)
		}
		want("cancel what is paid", s.cancel(ctx, "paid"), errConfirmed)
		want("confirm what is canceled", s.confirm(ctx, "canceled"), errExpired)
		want("confirm what never was", s.confirm(ctx, "nobody"), gorm.ErrRecordNotFound)
		s.clock.Add(time.Minute.Milliseconds())
		want("confirm before the sweep", s.confirm(ctx, "late"), errExpired)
		for range 2 {
			want("sweep", s.sweep(ctx), nil)
		}
		want("confirm after the sweep", s.confirm(ctx, "late"), errExpired)
		if s.remaining(t) != 7 {
			t.Errorf("%d remain, want 7", s.remaining(t))
		}
	})
}

// TestSale_CrashWhileReserving: a process that dies in the middle has taken nothing.
func TestSale_CrashWhileReserving(t *testing.T) {
	onSale(t, 5, func(t *testing.T, s *sale) {
		var crash atomic.Bool
		ok(t, "Register", s.db.Callback().Update().After("gorm:update").Register("crash", func(db *gorm.DB) {
			if crash.Load() && db.Statement.Table == "stocks" {
				_ = db.AddError(errors.New("the process dies"))
			}
		}))
		crash.Store(true)
		if s.reserve(t.Context(), "buyer", 42, 1) == nil {
			t.Error("it was reserved")
		}
		crash.Store(false)
		if s.remaining(t) != 5 || s.units(t, reserved) != 0 {
			t.Errorf("%d remain of 5, and %d are reserved", s.remaining(t), s.units(t, reserved))
		}
		ok(t, "reserve", s.reserve(t.Context(), "buyer", 42, 1))
	})
}

// TestSale_AgainAfterReturn: an order whose units went back holds nothing, and its buyer learns so.
func TestSale_AgainAfterReturn(t *testing.T) {
	onSale(t, 3, func(t *testing.T, s *sale) {
		ok(t, "reserve", s.reserve(t.Context(), "ann", 42, 2))
		ok(t, "reserve again", s.reserve(t.Context(), "ann", 42, 2))
		ok(t, "cancel", s.cancel(t.Context(), "ann"))
		if err := s.reserve(t.Context(), "ann", 42, 2); !errors.Is(err, errExpired) {
			t.Errorf("reserve after cancel: %v", err)
		}
		if left := s.remaining(t); left != 3 {
			t.Errorf("%d units are left, want 3", left)
		}
	})
}

// Two ids that the database takes for one are two orders. The second must not learn that it holds
// units.
func TestSale_IDsInAnotherCase(t *testing.T) {
	onSale(t, 5, func(t *testing.T, s *sale) {
		ok(t, "reserve", s.reserve(t.Context(), "ann", 42, 1))
		err := s.reserve(t.Context(), "ANN", 42, 1)
		if held := s.units(t, reserved); err == nil && held != 2 {
			t.Errorf("two orders were reserved, and %d unit is", held)
		}
	})
}

// Until a sweep comes, an order whose time is over holds nothing either: confirm refuses it.
func TestSale_AgainAfterItsTime(t *testing.T) {
	onSale(t, 3, func(t *testing.T, s *sale) {
		ok(t, "reserve", s.reserve(t.Context(), "ann", 42, 2))
		s.clock.Add(time.Minute.Milliseconds())
		if err := s.confirm(t.Context(), "ann"); !errors.Is(err, errExpired) {
			t.Errorf("confirm after its time: %v", err)
		}
		if err := s.reserve(t.Context(), "ann", 42, 2); !errors.Is(err, errExpired) {
			t.Errorf("reserve after its time: %v", err)
		}
	})
}

// Units that cannot be put back are not lost: the reservation stays, and the next sweep tries again. On
// MariaDB, KILL QUERY may end the UPDATE of the stock and answer success (docs/gorm.md: "look at
// RowsAffected"). A missing row answers the same on each database.
func TestSale_UnitsNotPutBack(t *testing.T) {
	onSale(t, 5, func(t *testing.T, s *sale) {
		ok(t, "reserve", s.reserve(t.Context(), "ann", 42, 2))
		ok(t, "Update", s.db.Model(&Stock{}).Where("sku = ?", 42).Update("sku", 43).Error)
		if err := s.cancel(t.Context(), "ann"); err == nil {
			t.Error("it is canceled, and its units went nowhere")
		}
		ok(t, "Update", s.db.Model(&Stock{}).Where("sku = ?", 43).Update("sku", 42).Error)
		ok(t, "cancel again", s.cancel(t.Context(), "ann"))
		if left := s.remaining(t); left != 5 {
			t.Errorf("%d units are left, want 5", left)
		}
	})
}

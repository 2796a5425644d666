package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/plugin/dbresolver"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// sale is a shop in this process, with its own provider and a clock that tests turn.
type sale struct {
	world
	shop  *shop
	ahead atomic.Int64 // of the clock
}

// onSale runs fn on each database, with so many units.
func onSale(t *testing.T, units int64, fn func(t *testing.T, s *sale)) {
	t.Parallel()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) { fn(t, newSale(t, db, units)) })
}

func newSale(t *testing.T, db *gorm.DB, units int64) *sale {
	t.Helper()
	pool, err := db.DB()
	check.OK(t, "DB", err)
	pool.SetMaxOpenConns(16)
	check.OK(t, "prepare", prepare(db, units))
	s := &sale{world: world{database: db, units: units, provider: newProvider(), crowd: crowd{states: make(map[string]string)}}}
	bank := httptest.NewServer(s.provider)
	t.Cleanup(bank.Close)
	s.url = bank.URL
	s.shop = s.newInstance(t, backendtest.Memory(), "shop")
	return s
}

// newInstance returns a shop on the sale's database.
func (s *sale) newInstance(t *testing.T, b core.Opener, name string) *shop {
	t.Helper()
	locker, err := core.New(b)
	check.OK(t, "core.New", err)
	t.Cleanup(func() { _ = locker.Close() })
	made, err := newShop(s.database, locker, newPayments(s.url, name, patience), time.Minute)
	check.OK(t, "newShop", err)
	made.now = func() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }
	return made
}

// order sends one request to a shop.
func order(t *testing.T, s *shop, buyer, key string, units int) (status int, id string) {
	t.Helper()
	routes, err := s.routes()
	check.OK(t, "routes", err)
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(fmt.Sprintf(`{"units":%d}`, units)))
	r.Header.Set("Authorization", "Bearer "+buyer)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	routes.ServeHTTP(w, r)
	var said struct{ Order string }
	_ = json.Unmarshal(w.Body.Bytes(), &said)
	return w.Code, said.Order
}

// expect sends an order, and checks the status of the answer.
func (s *sale) expect(t *testing.T, buyer, key string, units, status int) {
	t.Helper()
	if got, _ := order(t, s.shop, buyer, key, units); got != status {
		t.Errorf("the order of %s: %d, want %d", buyer, got, status)
	}
}

// balance checks the books, and how they stand.
func (s *sale) balance(t *testing.T, confirmed, expired int, remaining int64) {
	t.Helper()
	b, err := s.books(t.Context())
	check.OK(t, "books", err)
	if len(b.wrong) > 0 || b.confirmed != confirmed || b.expired != expired || b.remaining != remaining {
		t.Errorf("want %d confirmed, %d expired, %d remaining: %v", confirmed, expired, remaining, b)
	}
}

// later is when all reservations have expired.
func (s *sale) later() { s.ahead.Store(int64(2 * time.Minute)) }

// Customers click twice over three instances. More come than there are units.
func TestOrder_Books(t *testing.T) {
	onSale(t, 30, func(t *testing.T, s *sale) {
		records := backendtest.Memory()
		var instances []http.Handler
		for n := range 3 {
			shop := s.newInstance(t, records, fmt.Sprint("shop-", n))
			routes, err := shop.routes()
			check.OK(t, "routes", err)
			instances = append(instances, routes)
		}
		var turn atomic.Int64
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			instances[turn.Add(1)%3].ServeHTTP(w, r)
		}))
		defer front.Close()
		s.url = front.URL
		n := 0
		answers := s.rush(t.Context(), false, func() bool { n++; return n > 40 })
		b, err := s.books(t.Context())
		check.OK(t, "books", err)
		total := answers[http.StatusCreated] + answers[http.StatusPaymentRequired] + answers[http.StatusGone]
		if len(b.wrong) > 0 || answers[http.StatusCreated] != 2*b.confirmed || total != 80 || b.expired > 0 {
			t.Error(answers, b)
		}
	})
}

// The provider is down: nobody is charged, and nothing is lost. A retry is paid, and what nobody comes
// back for goes on sale again when the provider answers.
func TestOrder_ProviderDown(t *testing.T) {
	onSale(t, 10, func(t *testing.T, s *sale) {
		s.provider.down.Store(true)
		s.expect(t, "ann", "1", 2, http.StatusServiceUnavailable)
		s.expect(t, "ben", "1", 3, http.StatusServiceUnavailable)
		s.provider.down.Store(false)
		s.expect(t, "ann", "1", 2, http.StatusCreated)
		s.later()
		s.provider.down.Store(true)
		if err := s.shop.sweep(t.Context()); err == nil {
			t.Error("the sweep has settled an order without the provider")
		}
		s.provider.down.Store(false)
		check.OK(t, "sweep", s.shop.sweep(t.Context()))
		s.balance(t, 1, 1, 8)
		s.expect(t, "ben", "1", 3, http.StatusGone)
	})
}

// slow is a network on which each answer comes too late.
type slow struct{}

func (slow) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
	if err == nil {
		_ = resp.Body.Close()
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// The provider charges, and its answer comes too late. A retry learns of the charge, or the sweep does.
func TestOrder_ProviderSlow(t *testing.T) {
	onSale(t, 10, func(t *testing.T, s *sale) {
		quick := s.shop.provider
		s.shop.provider = newPayments(s.url, "shop", 10*time.Millisecond)
		s.shop.provider.client.Transport.(*idempotency.Transport).Base = slow{}
		s.expect(t, "ann", "1", 2, http.StatusServiceUnavailable)
		s.expect(t, "ben", "1", 3, http.StatusServiceUnavailable)
		s.shop.provider = quick
		s.expect(t, "ann", "1", 2, http.StatusCreated)
		s.later()
		check.OK(t, "sweep", s.shop.sweep(t.Context()))
		s.balance(t, 2, 0, 5)
		s.expect(t, "ben", "1", 3, http.StatusCreated)
	})
}

// A process has charged, and dies before it knows. Its buyer never comes back.
func TestSweep_ChargedIsConfirmed(t *testing.T) {
	onSale(t, 10, func(t *testing.T, s *sale) {
		s.provider.down.Store(true)
		s.expect(t, "ann", "1", 2, http.StatusServiceUnavailable)
		s.provider.down.Store(false)
		var o Order
		check.OK(t, "Take", s.database.Take(&o).Error)
		s.provider.decide(o.ID, charge{Buyer: "ann", Cents: o.cents(), State: charged})
		check.OK(t, "an early sweep", s.shop.sweep(t.Context()))
		check.OK(t, "Take", s.database.Take(&o).Error)
		if o.State != reserved {
			t.Errorf("the sweep took an order before its time: %s", o.State)
		}
		s.later()
		for range 2 {
			check.OK(t, "sweep", s.shop.sweep(t.Context()))
		}
		s.balance(t, 1, 0, 8)
	})
}

// A process stands still before it charges, for so long that the units are on sale again. Its charge
// comes too late.
func TestSweep_LateCharge(t *testing.T) {
	onSale(t, 10, func(t *testing.T, s *sale) {
		asked, on := make(chan struct{}), make(chan struct{})
		s.provider.reached = func(moment, _ string) bool {
			if moment == momentAsked {
				close(asked)
				<-on
			}
			return false
		}
		status := make(chan int)
		go func() {
			got, _ := order(t, s.shop, "ann", "1", 2)
			status <- got
		}()
		<-asked
		s.later()
		check.OK(t, "sweep", s.shop.sweep(t.Context()))
		s.balance(t, 0, 1, 10)
		close(on)
		if got := <-status; got != http.StatusGone {
			t.Errorf("a late buyer gets %d, want 410", got)
		}
		s.balance(t, 0, 1, 10)
	})
}

// Redis has lost its records, or the answer is older than they are. The same key is the same order,
// even if that has the last unit.
func TestOrder_RecordsLost(t *testing.T) {
	onSale(t, 2, func(t *testing.T, s *sale) {
		s.expect(t, "ann", "1", 2, http.StatusCreated)
		s.shop = s.newInstance(t, backendtest.Memory(), "shop")
		s.expect(t, "ann", "1", 2, http.StatusCreated)
		s.balance(t, 1, 0, 0)
		s.expect(t, "ben", "1", 1, http.StatusGone) // another buyer's key is another key
	})
}

// A key belongs to one quantity, even after the records are lost. The order that is there must not be
// charged then.
func TestOrder_OtherQuantity(t *testing.T) {
	onSale(t, 10, func(t *testing.T, s *sale) {
		s.expect(t, "ann", "1", 2, http.StatusCreated)
		s.provider.down.Store(true)
		s.expect(t, "ben", "1", 1, http.StatusServiceUnavailable)
		s.provider.down.Store(false)
		for range 2 {
			s.expect(t, "ann", "1", 3, http.StatusUnprocessableEntity)
			s.expect(t, "ben", "1", 3, http.StatusUnprocessableEntity)
			if n := len(s.provider.taken); n != 1 {
				t.Errorf("%d charges, want 1: a request that is refused was charged", n)
			}
			s.shop = s.newInstance(t, backendtest.Memory(), "shop")
		}
		s.expect(t, "ben", "1", 1, http.StatusCreated)
		s.balance(t, 2, 0, 7)
	})
}

// dying is the end of a handler after its call has arrived.
type dying struct{}

func (dying) RoundTrip(r *http.Request) (*http.Response, error) {
	if resp, err := http.DefaultTransport.RoundTrip(r); err == nil {
		_ = resp.Body.Close()
	}
	panic(http.ErrAbortHandler)
}

// A handler charges, and dies. A retry runs again and finds the charge.
func TestOrder_RunsAgain(t *testing.T) {
	onSale(t, 5, func(t *testing.T, s *sale) {
		well := s.shop.provider
		s.shop.provider.client = &http.Client{Transport: dying{}}
		s.expect(t, "ann", "1", 2, http.StatusInternalServerError)
		s.shop.provider = well
		s.expect(t, "ann", "1", 2, http.StatusCreated)
		s.balance(t, 1, 0, 3)
	})
}

// Units that cannot be put back are not lost: the reservation stays, and the next sweep tries again.
func TestSweep_UnitsNotPutBack(t *testing.T) {
	onSale(t, 5, func(t *testing.T, s *sale) {
		s.provider.down.Store(true)
		s.expect(t, "ann", "1", 2, http.StatusServiceUnavailable)
		s.provider.down.Store(false)
		s.later()
		check.OK(t, "Update", s.database.Model(&Stock{}).Where("sku = ?", sku).Update("sku", 43).Error)
		if err := s.shop.sweep(t.Context()); err == nil {
			t.Error("it is canceled, and its units went nowhere")
		}
		check.OK(t, "Update", s.database.Model(&Stock{}).Where("sku = ?", 43).Update("sku", sku).Error)
		check.OK(t, "sweep", s.shop.sweep(t.Context()))
		s.balance(t, 0, 1, 5)
	})
}

// Two instances settle one order at once: its units come back once.
func TestSettle_Twice(t *testing.T) {
	onSale(t, 5, func(t *testing.T, s *sale) {
		s.provider.down.Store(true)
		s.expect(t, "ann", "1", 2, http.StatusServiceUnavailable)
		s.provider.down.Store(false)
		s.later()
		errs := make(chan error)
		for range 4 {
			go func() { errs <- s.shop.sweep(t.Context()) }()
		}
		for range 4 {
			check.OK(t, "sweep", <-errs)
		}
		s.balance(t, 0, 1, 5)
	})
}

// A replica that is behind must not decide: a second run would charge for an order that is settled.
func TestOrder_ReplicaIsBehind(t *testing.T) {
	t.Parallel()
	open := func() *gorm.DB {
		db, err := openDB("sqlite:" + t.TempDir() + "/shop.db")
		check.OK(t, "openDB", err)
		t.Cleanup(func() { closeDB(db) })
		return db
	}
	db, behind := open(), open()
	s := newSale(t, db, 2)
	check.OK(t, "prepare", prepare(behind, 2))
	s.expect(t, "ann", "1", 1, http.StatusCreated)
	var o Order
	check.OK(t, "Take", db.Take(&o).Error)
	o.State = expired // what the replica says
	check.OK(t, "Create", behind.Create(&o).Error)
	replica, err := behind.DB()
	check.OK(t, "DB", err)
	check.OK(t, "Use", db.Use(dbresolver.Register(dbresolver.Config{
		Replicas: []gorm.Dialector{&sqlite.Dialector{Conn: replica}},
	})))
	s.shop = s.newInstance(t, backendtest.Memory(), "shop")
	s.expect(t, "ann", "1", 1, http.StatusCreated)
}

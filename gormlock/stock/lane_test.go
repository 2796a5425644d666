package stock_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestSale_CallerLeaves: a context that ends in the line withdraws the call. After its batch was
// sent, the call gets the true result, and its order is its own again.
func TestSale_CallerLeaves(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		sent, goOn := make(chan struct{}), make(chan struct{})
		f := &faulty{}
		f.statement = func(query string) error {
			if strings.HasPrefix(query, "INSERT") {
				close(sent)
				<-goOn
			}
			return nil
		}
		s := newSale[Plain](t, through(db, f))
		ctx, cancel := context.WithCancel(t.Context())
		first, second := &Plain{SKU: 42, Buyer: 1}, &Plain{SKU: 42, Buyer: 2}
		result := make(chan error, 2)
		go func() { _, err := s.Sell(ctx, 42, 1, first); result <- err }()
		<-sent
		f.statement = nil
		waiting := make(chan error)
		go func() { _, err := s.Sell(ctx, 42, 1, second); waiting <- err }()
		eventually(t, "the second call is in line", func() bool { return stock.Queued(s) == 1 })
		cancel()
		want(t, "the one in line", <-waiting, context.Canceled)
		second.Buyer = 99 // the caller reuses it
		close(goOn)
		if ok(t, "the one that was sent", <-result); first.ID == 0 {
			t.Error("it has no id")
		}
		wantBooks[Plain](t, db, 1000, 1)
		_, err := s.Sell(ctx, 42, 1, second)
		want(t, "a context that has ended", err, context.Canceled)
	})
}

// TestSale_BatchLeft: a context that ends while the call's batch runs changes nothing.
func TestSale_BatchLeft(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		sent, goOn := make(chan struct{}), make(chan struct{})
		f := &faulty{statement: func(query string) error {
			if strings.HasPrefix(query, "INSERT") {
				close(sent)
				<-goOn
			}
			return nil
		}}
		s := newSale[Plain](t, through(db, f))
		ctx, cancel := context.WithCancel(t.Context())
		release := stock.Hold(s)
		var wg sync.WaitGroup
		for _, o := range plains(2) {
			wg.Go(func() {
				if _, err := s.Sell(ctx, 42, 1, o); err != nil || o.ID == 0 {
					t.Errorf("%+v: %v", *o, err)
				}
			})
		}
		eventually(t, "two calls are in line", func() bool { return stock.Queued(s) == 2 })
		release()
		<-sent
		cancel()
		close(goOn)
		wg.Wait()
		wantBooks[Plain](t, db, 1000, 2)
	})
}

// TestSale_Within: a batch that takes too long is rolled back.
func TestSale_Within(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		for _, says := range []error{nil, driver.ErrBadConn, errors.New("interrupted (9)")} { // drivers have their own words
			s := newSale[Plain](t, through(db, &faulty{hangs: true, says: says}), stock.Within(50*time.Millisecond))
			for _, x := range together(t, db, s, one, plains(4)...) {
				want(t, "Sell", x.err, context.DeadlineExceeded)
				if errors.Is(x.err, stock.ErrCommitUnknown) {
					t.Error(x.err)
				}
			}
		}
		wantBooks[Plain](t, db, 1000, 0)
		// The time ends between the last statement and COMMIT, which is not sent then.
		fresh(t, db, 1000, &Hooked{})
		_, err := newSale[Hooked](t, db, stock.Within(50*time.Millisecond)).Sell(t.Context(), 42, 1, &Hooked{Buyer: 107})
		if want(t, "before COMMIT", err, context.DeadlineExceeded); errors.Is(err, stock.ErrCommitUnknown) {
			t.Error(err)
		}
		wantBooks[Hooked](t, db, 1000, 0)
	})
}

// TestSale_Context: hooks see the context of NewSale, never that of a caller.
func TestSale_Context(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Hooked{})
		tenant := func(ctx context.Context, name string) context.Context {
			return context.WithValue(ctx, tenantKey{}, name)
		}
		s := newSale[Hooked](t, db.WithContext(tenant(t.Context(), "sale")))
		o := &Hooked{Buyer: 105}
		_, err := s.Sell(tenant(t.Context(), "caller"), 42, 1, o)
		if ok(t, "Sell", err); o.Value != "sale" {
			t.Errorf("a hook saw the context of %q", o.Value)
		}
	})
}

// TestSale_Lone: a caller alone sells in its own goroutine.
func TestSale_Lone(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Hooked{})
		o := &Hooked{Buyer: 106}
		_, err := newSale[Hooked](t, db).Sell(t.Context(), 42, 1, o)
		if ok(t, "Sell", err); o.Value != "true" {
			t.Error("the hook ran in another goroutine")
		}
	})
}

// TestSale_InTransaction: Sell commits by itself, so it refuses gormlock's transactions.
func TestSale_InTransaction(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		ok(t, "Use", db.Use(gormlock.New(check.Locker(t, backendtest.Memory()))))
		s := newSale[Plain](t, db, stock.Within(100*time.Millisecond))
		ok(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			_, err := s.Sell(tx.Statement.Context, 42, 1, &Plain{SKU: 42})
			if err == nil || !strings.Contains(err.Error(), "open transaction") {
				t.Errorf("Sell in a transaction: %v", err)
			}
			return nil
		}))
		if _, err := stock.NewSale[Stock, Plain](db.Begin(), "remaining"); !errors.Is(err, gorm.ErrInvalidTransaction) {
			t.Errorf("a sale of a transaction: %v", err)
		}
		wantBooks[Plain](t, db, 1000, 0)
	})
}

// TestSale_PoolOfOne: one connection is enough, and a sale waits for the transaction of another
// one.
func TestSale_PoolOfOne(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		pool, _ := db.DB()
		fresh(t, db, 1000, &Plain{})
		pool.SetMaxOpenConns(1)
		defer pool.SetMaxOpenConns(0)
		s := newSale[Plain](t, db, stock.Within(time.Minute))
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 16 {
					_, err := s.Sell(context.Background(), 42, 1, &Plain{SKU: 42})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		wantBooks[Plain](t, db, 1000, 64)
		s = newSale[Plain](t, db, stock.Within(50*time.Millisecond))
		ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error {
			_, err := s.Sell(t.Context(), 42, 1, &Plain{SKU: 42})
			want(t, "the only connection is in use", err, context.DeadlineExceeded)
			return nil
		}))
	})
}

// TestSale_PoolLeavesOne: a sale leaves one connection of the pool to others.
func TestSale_PoolLeavesOne(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		pool, _ := db.DB()
		fresh(t, db, 1000, &Plain{})
		pool.SetMaxOpenConns(3)
		defer pool.SetMaxOpenConns(0)
		goOn := make(chan struct{})
		f := &faulty{begin: func() error { <-goOn; return nil }}
		s := newSale[Plain](t, through(db, f))
		var wg sync.WaitGroup
		for i := range 4 { // there are no such rows but one
			wg.Go(func() { _, _ = s.Sell(context.Background(), 42+i, 1, &Plain{SKU: 42}) })
		}
		eventually(t, "two calls wait for a connection", func() bool { return stock.Queued(s) == 2 })
		eventually(t, "two transactions begin", func() bool { return f.begins.Load() == 2 })
		close(goOn)
		wg.Wait()
		wantBooks[Plain](t, db, 1000, 1)
	})
}

// TestSale_WaitsForAConnection: the first call for a row may leave before there is a connection. The
// calls that joined it share transactions, with it or without it.
func TestSale_WaitsForAConnection(t *testing.T) {
	for name, leaves := range map[string]bool{"the first stays": false, "the first leaves": true} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, db *gorm.DB) { waitsForAConnection(t, db, leaves) })
		})
	}
}

func waitsForAConnection(t *testing.T, db *gorm.DB, leaves bool) {
	pool, _ := db.DB()
	fresh(t, db, 1000, &Plain{})
	ok(t, "Create", db.Create(&Stock{SKU: 43, Remaining: 1000}).Error)
	pool.SetMaxOpenConns(2)
	defer pool.SetMaxOpenConns(0)
	goOn := make(chan struct{})
	f := &faulty{begin: func() error { <-goOn; return nil }}
	s := newSale[Plain](t, through(db, f), stock.Batch(2))
	sell := func(ctx context.Context, sku int) <-chan error {
		answer := make(chan error, 1)
		go func() {
			_, err := s.Sell(ctx, sku, 1, &Plain{SKU: int64(sku)})
			answer <- err
		}()
		return answer
	}
	all := []<-chan error{sell(context.Background(), 42)}
	eventually(t, "the only connection is in use", func() bool { return f.begins.Load() == 1 })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first := sell(ctx, 43)
	eventually(t, "the first call waits", func() bool { return stock.Queued(s) == 1 })
	for range 3 {
		all = append(all, sell(context.Background(), 43))
	}
	eventually(t, "others join it", func() bool { return stock.Queued(s) == 4 })
	if leaves {
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the first call: %v", err)
		}
	} else {
		all = append(all, first)
	}
	close(goOn)
	for _, answer := range all {
		ok(t, "Sell", <-answer)
	}
	if n := f.begins.Load(); n != 3 {
		t.Errorf("%d transactions, want one for the other row, and two for up to two calls each", n)
	}
	eventually(t, "no lane is left", func() bool { return stock.Lanes(s) == 0 })
	if n := count[Plain](t, db); n != int64(len(all)) {
		t.Errorf("%d orders of %d calls", n, len(all))
	}
}

// TestSale_ManyRows: each row has its lane, and lanes go away.
func TestSale_ManyRows(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		var rows []Stock
		for i := range 200 {
			rows = append(rows, Stock{SKU: int64(1000 + i), Remaining: 1})
		}
		ok(t, "Create", db.Create(&rows).Error)
		s := newSale[Plain](t, db, stock.Remember(time.Millisecond))
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				for n := range 2 {
					_, err := s.Sell(context.Background(), 1000+i, 1, &Plain{SKU: int64(1000 + i)})
					if n == 0 && err != nil || n == 1 && !errors.Is(err, stock.ErrInsufficient) {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		eventually(t, "no lane is left", func() bool { return stock.Lanes(s) == 0 })
		if n := count[Plain](t, db); n != 200 {
			t.Errorf("%d orders", n)
		}
	})
}

// TestSale_Busy: a full line turns calls away at once.
func TestSale_Busy(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		s := newSale[Plain](t, db, stock.Waiting(2))
		release := stock.Hold(s)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_, err := s.Sell(context.Background(), 42, 1, &Plain{SKU: 42})
				if err != nil {
					t.Error(err)
				}
			})
		}
		eventually(t, "two calls are in line", func() bool { return stock.Queued(s) == 2 })
		_, err := s.Sell(t.Context(), 42, 1, &Plain{SKU: 42})
		if want(t, "a full line", err, stock.ErrBusy); !strings.Contains(err.Error(), "Waiting") {
			t.Error(err)
		}
		release()
		wg.Wait()
		wantBooks[Plain](t, db, 1000, 2)
	})
}

// TestSale_Closed: a sale that closes while callers wait.
func TestSale_Closed(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Order{})
		s := newSale[Order](t, db, unique, stock.If("state = ?", "open"))
		ok(t, "open", together(t, db, s, one, orders(1)...)[0].err)
		ok(t, "Update", db.Model(&Stock{}).Where("sku = 42").Update("state", "closed").Error)
		for range 2 { // plain, and alone
			for _, x := range together(t, db, s, one, orders(8)...) {
				want(t, "closed", x.err, stock.ErrClosed)
			}
		}
		_, err := s.Sell(t.Context(), 42, 1, &Order{SKU: 42, Buyer: 77})
		want(t, "closed, alone", err, stock.ErrClosed)
		ok(t, "Update", db.Model(&Stock{}).Where("sku = 42").Update("state", "open").Error)
		ok(t, "opened again", together(t, db, s, one, &Order{SKU: 42, Buyer: 77})[0].err)
		wantBooks[Order](t, db, 1000, 2)
		// GORM writes no parentheses around this one.
		ok(t, "Create", db.Create(&Stock{SKU: 43, Remaining: 10, State: "other"}).Error)
		either := newSale[Order](t, db, stock.If("state = 'closed' OR\nstate = 'other'"))
		_, err = either.Sell(t.Context(), 42, 1, &Order{SKU: 42, Buyer: 78})
		want(t, "neither", err, stock.ErrClosed)
		wantBooks[Order](t, db, 1000, 2)
	})
}

// TestSale_ClosesMeanwhile: a sale closes while callers wait in line.
func TestSale_ClosesMeanwhile(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Order{})
		s := newSale[Order](t, db, unique, stock.If("state = ?", "open"))
		release := stock.Hold(s)
		var wg sync.WaitGroup
		for _, o := range orders(9) {
			wg.Go(func() {
				_, err := s.Sell(context.Background(), 42, 1, o)
				if !errors.Is(err, stock.ErrClosed) || o.ID != 0 {
					t.Errorf("%+v: %v", *o, err)
				}
			})
		}
		eventually(t, "nine calls are in line", func() bool { return stock.Queued(s) == 9 })
		ok(t, "Update", db.Model(&Stock{}).Where("sku = 42").Update("state", "closed").Error)
		release()
		wg.Wait()
		wantBooks[Order](t, db, 1000, 0)
	})
}

// TestSale_Restock: a sale sees a restock by SQL without a call, and asks for a smaller quantity.
func TestSale_Restock(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 3, &Plain{})
		f := &faulty{}
		s := newSale[Plain](t, through(db, f), stock.Remember(time.Hour))
		sell := func(n int64) error { _, err := s.Sell(t.Context(), 42, n, &Plain{SKU: 42}); return err }
		want(t, "five of three", sell(5), stock.ErrInsufficient)
		f.begins.Store(0)
		if want(t, "again", sell(4), stock.ErrInsufficient); f.begins.Load() != 0 {
			t.Error("the database was asked for what is known")
		}
		ok(t, "a smaller quantity", sell(3))
		s = newSale[Plain](t, db, stock.Remember(20*time.Millisecond))
		want(t, "sold out", sell(1), stock.ErrInsufficient)
		ok(t, "Update", db.Model(&Stock{}).Where("sku = 42").Update("remaining", 1).Error)
		eventually(t, "the restock is seen", func() bool { return sell(1) == nil })
		s = newSale[Plain](t, through(db, f), stock.Remember(0))
		f.begins.Store(0)
		for range 2 {
			want(t, "sold out", sell(1), stock.ErrInsufficient)
		}
		if f.begins.Load() != 2 {
			t.Errorf("without memory the database was asked %d times", f.begins.Load())
		}
	})
}

type CompositeKey struct {
	A, B      int64 `gorm:"primaryKey"`
	Remaining int64
}
type TextStock struct {
	SKU       string `gorm:"primaryKey;size:32"`
	Remaining string `gorm:"size:32"`
	Pieces    int16
}

// Pointing embeds a struct that a clone would share with the caller.
type Pointing struct {
	ID int64 `gorm:"primaryKey"`
	*Shared
}
type Shared struct{ Note string }

func TestNewSale_Refused(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		refused := func(_ any, err error) {
			t.Helper()
			if err == nil {
				t.Error("it was not refused")
			}
		}
		refused(stock.NewSale[CompositeKey, Plain](db, "remaining"))
		refused(stock.NewSale[TextStock, Plain](db, "remaining"))
		refused(stock.NewSale[Stock, Plain](db, "missing"))
		refused(stock.NewSale[Stock, Plain](db, "remaining", unique))                       // no index
		refused(stock.NewSale[Stock, Order](db, "remaining", stock.Unique("buyer", "sku"))) // another order
		refused(stock.NewSale[Stock, Order](db, "remaining", stock.Unique("nobody")))
		refused(stock.NewSale[Stock, Order](db, "remaining", stock.First()))
		refused(stock.NewSale[Stock, Order](db.Session(&gorm.Session{DryRun: true}), "remaining"))
		refused(stock.NewSale[int, Order](db, "remaining"))
		refused(stock.NewSale[Stock, Pointing](db, "remaining"))
		for _, o := range []stock.Option{stock.Batch(0), stock.Batch(5000), stock.Waiting(0), stock.Within(0), stock.Remember(-1), stock.Unique()} {
			refused(stock.NewSale[Stock, Order](db, "remaining", o))
		}
		_, err := stock.NewSale[Stock, Order](db, "remaining", nil, stock.Batch(300), stock.Remember(0))
		ok(t, "NewSale", err)
	})
}

func TestSale_Keys(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		s := newSale[Plain](t, db)
		type mine int8
		for _, key := range []any{42, int64(42), uint8(42), mine(42)} {
			_, err := s.Sell(t.Context(), key, 1, &Plain{SKU: 42})
			ok(t, "Sell", err)
		}
		for _, key := range []any{nil, "42", 42.0, uint64(1 << 63)} {
			if _, err := s.Sell(t.Context(), key, 1, &Plain{SKU: 42}); err == nil {
				t.Errorf("the key %v was taken", key)
			}
		}
		if _, err := s.Sell(t.Context(), 42, 1, nil); err == nil {
			t.Error("no order was taken")
		}
		ok(t, "DropTable", db.Migrator().DropTable(&TextStock{}))
		ok(t, "AutoMigrate", db.AutoMigrate(&TextStock{}))
		ok(t, "Create", db.Create(&TextStock{SKU: "a b", Pieces: 100}).Error)
		texts, err := stock.NewSale[TextStock, Plain](db, "pieces")
		ok(t, "NewSale", err)
		rest, err := texts.Sell(t.Context(), "a b", 2, &Plain{})
		if ok(t, "Sell", err); rest != 98 {
			t.Errorf("%d are left", rest)
		}
		if _, err = texts.Sell(t.Context(), "a b", 40_000, &Plain{}); err == nil || errors.Is(err, stock.ErrInsufficient) {
			t.Errorf("more than the column holds: %v", err)
		}
	})
}

// TestSale_AfterCommit: a function that a hook registers runs once, after the COMMIT that counts.
func TestSale_AfterCommit(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Noted{})
		ok(t, "Use", db.Use(gormlock.New(check.Locker(t, backendtest.Memory()))))
		s := newSale[Noted](t, db)
		var mu sync.Mutex
		notes := make(map[int64]int)
		var all []*Noted
		for i := range 8 {
			all = append(all, &Noted{Buyer: int64(i), note: func() { mu.Lock(); notes[int64(i)]++; mu.Unlock() }})
		}
		all[3].Refused = true
		for i, x := range together(t, db, s, one, all...) {
			if (x.err == nil) == (i == 3) {
				t.Errorf("%v", x)
			}
		}
		for i := range int64(8) {
			if n := notes[i]; n != 1 && i != 3 || i == 3 && n != 0 {
				t.Errorf("order %d: %d notes", i, n)
			}
		}
	})
}

type Noted struct {
	ID      int64 `gorm:"primaryKey"`
	Buyer   int64
	Refused bool
	note    func()
}

func (n *Noted) AfterCreate(tx *gorm.DB) error {
	if n.Refused {
		return errHook
	}
	return gormlock.AfterCommit(tx, func(context.Context) { n.note() })
}

// Edition has a version, as others save it with optimistic locking.
type Edition struct {
	SKU       int64 `gorm:"primaryKey;autoIncrement:false"`
	Remaining int64
	Version   optimistic.Version
	UpdatedAt time.Time
}

// TestSale_Version: whoever read the row before cannot put the stock back.
func TestSale_Version(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		var l *core.Locker
		ok(t, "Use", db.Use(gormlock.New(l)))
		for _, m := range []any{&Edition{}, &Plain{}} {
			ok(t, "DropTable", db.Migrator().DropTable(m))
			ok(t, "AutoMigrate", db.AutoMigrate(m))
		}
		ok(t, "Create", db.Create(&Edition{SKU: 42, Remaining: 10}).Error)
		var read, later Edition
		ok(t, "Take", db.Take(&read, 42).Error)
		was := read
		s, err := stock.NewSale[Edition, Plain](db, "remaining")
		ok(t, "NewSale", err)
		for range 4 {
			_, err := s.Sell(t.Context(), 42, 1, &Plain{SKU: 42})
			ok(t, "Sell", err)
		}
		want(t, "an old read", db.Model(&read).Update("remaining", read.Remaining).Error, optimistic.ErrStale)
		ok(t, "Take", db.Take(&later, 42).Error)
		if later.Remaining != 6 || later.Version != was.Version+4 || !later.UpdatedAt.After(was.UpdatedAt) {
			t.Errorf("was %+v, is %+v", was, later)
		}
	})
}

// TestSale_Protected: a table of Protect refuses a sale, which has no guard, and says so.
func TestSale_Protected(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		ok(t, "Use", db.Use(gormlock.New(check.Locker(t, backendtest.Memory()), gormlock.Protect(&Stock{}))))
		s := newSale[Plain](t, db)
		for _, x := range together(t, db, s, one, plains(4)...) {
			want(t, "a protected table", x.err, gormlock.ErrUnguarded)
		}
		wantBooks[Plain](t, db, 1000, 0)
	})
}

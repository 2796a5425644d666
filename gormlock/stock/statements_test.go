package stock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/gormlock/testdata/sqlite3"
)

// mattn's driver has the whole code in a field of its own. A repeat that is not recognized is an ordinary
// refusal.
func TestDuplicate_MattnsError(t *testing.T) {
	t.Parallel()
	for code, repeat := range map[sqlite3.ErrNoExtended]bool{2067: true, 1555: true, 787: false, 1299: false} {
		if got := stock.Duplicate(sqlite3.Error{Code: 19, ExtendedCode: code}); got != repeat {
			t.Errorf("code %d: a repeat is %v, want %v", code, got, repeat)
		}
	}
}

// TestSale_ProbePlan: on a table without statistics, and with plans from when it was empty, only
// the unique index answers the look for duplicates.
func TestSale_ProbePlan(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "postgres" {
			return
		}
		fresh(t, db, 1000, &Order{})
		ok(t, "Exec", db.Exec("ALTER TABLE orders SET (autovacuum_enabled = off)").Error)
		ok(t, "Exec", db.Exec("CREATE INDEX misleading ON orders(sku)").Error)
		ok(t, "Exec", db.Exec("ANALYZE orders").Error)
		f := &faulty{}
		s := newSale[Order](t, through(db, f), unique)
		for range 2 {
			together(t, db, s, one, orders(8)...)
		}
		ok(t, "Exec", db.Exec("INSERT INTO orders(sku, buyer, n, note) SELECT 42, 1000 + g, 1, '' FROM generate_series(1, 20000) g").Error)
		f.seen()
		for i, x := range together(t, db, s, one, append(orders(4), &Order{SKU: 42, Buyer: 1001}, &Order{SKU: 42, Buyer: 99})...) {
			if i < 5 {
				want(t, "a repeat", x.err, stock.ErrDuplicate)
			} else {
				ok(t, "a new buyer", x.err)
			}
		}
		probes := 0
		all := f.seen()
		for i, query := range all {
			if !strings.Contains(query, "LATERAL") {
				continue
			}
			if probes++; all[i-1] != "SET LOCAL plan_cache_mode = force_custom_plan" {
				t.Errorf("the plan is not made anew: before the probe came %s", all[i-1])
			}
			query = strings.NewReplacer("$1", `'[{"sku":"42","buyer":"1001"}]'`, "$2", "1").Replace(query)
			var plan []string
			ok(t, "EXPLAIN", db.Raw("EXPLAIN "+query).Scan(&plan).Error)
			text := strings.Join(plan, "\n")
			if !strings.Contains(text, "using one on orders") || strings.Contains(text, "Seq Scan") {
				t.Errorf("%s\n%s", query, text)
			}
		}
		if probes == 0 {
			t.Error("no look for duplicates was seen")
		}
	})
}

// TestSale_Look: repeats are found first once there were some, and no longer when there are none.
func TestSale_Look(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Order{})
		f := &faulty{}
		s := newSale[Order](t, through(db, f), unique, stock.First())
		for _, x := range together(t, db, s, one, orders(8)...) {
			ok(t, "Sell", x.err)
		}
		buyer := int64(100)
		again := func() {
			t.Helper()
			repeats := orders(8)
			buyer++
			repeats[5].Buyer = buyer
			for i, x := range together(t, db, s, one, repeats...) {
				if i == 5 {
					ok(t, "a new buyer", x.err)
					continue
				}
				if want(t, "a repeat", x.err, stock.ErrDuplicate); x.order.ID == 0 || x.order.Buyer != int64(i+1) {
					t.Errorf("First read %+v", *x.order)
				}
			}
		}
		f.begins.Store(0)
		if again(); f.begins.Load() != 2 { // plain, and in chunks
			t.Errorf("%d transactions", f.begins.Load())
		}
		for range 2 {
			f.begins.Store(0)
			if again(); f.begins.Load() != 1 {
				t.Errorf("%d transactions where repeats are about", f.begins.Load())
			}
		}
		looks := func() (n int) {
			for _, query := range f.seen() {
				if strings.Contains(query, "FOR UPDATE") || strings.Contains(query, "LATERAL") {
					n++
				}
			}
			return n
		}
		for i := range 70 {
			_, err := s.Sell(t.Context(), 42, 1, &Order{SKU: 42, Buyer: int64(1000 + i)})
			ok(t, "Sell", err)
		}
		looks()
		_, err := s.Sell(t.Context(), 42, 1, &Order{SKU: 42, Buyer: 5000})
		if ok(t, "Sell", err); looks() != 0 {
			t.Error("it still looks for repeats")
		}
	})
}

type Texted struct {
	ID    int64     `gorm:"primaryKey"`
	Name  *string   `gorm:"size:64;uniqueIndex:one"`
	Other []byte    `gorm:"size:16;uniqueIndex:one"`
	At    time.Time `gorm:"uniqueIndex:one"`
}

// TestSale_UniqueTypes: NULL equals nothing, and quotes, bytes and times are found.
func TestSale_UniqueTypes(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Texted{})
		f := &faulty{}
		s := newSale[Texted](t, through(db, f), stock.Unique("name", "Other", "at"))
		at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
		text := func(s string) *string { return &s }
		make8 := func() (all []*Texted) {
			for i := range 4 {
				all = append(all, &Texted{Name: text(fmt.Sprintf(`a"\'{},%d`, i)), Other: []byte{0, byte(i), 255}, At: at})
				all = append(all, &Texted{Other: []byte{1}, At: at})
			}
			return all
		}
		for round := range 3 {
			all := together(t, db, s, one, make8()...)
			if round == 0 && f.begins.Load() != 1 {
				t.Errorf("%d transactions: an order with NULL waited for another", f.begins.Load())
			}
			for i, x := range all {
				if i%2 == 0 && x.err != nil {
					want(t, "a repeat", x.err, stock.ErrDuplicate)
				} else {
					ok(t, "Sell", x.err)
				}
			}
		}
		wantBooks[Texted](t, db, 1000, 4+3*4)
	})
}

// TestSale_Collation: the database decides what is equal, not Go.
func TestSale_Collation(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" { // the others tell "Bob" from "bob"
			return
		}
		fresh(t, db, 1000, &Texted{})
		s := newSale[Texted](t, db, stock.Unique("name", "Other", "at"))
		named := func(name string) *Texted {
			return &Texted{Name: &name, Other: []byte{1}, At: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)}
		}
		ok(t, "Sell", together(t, db, s, one, named("Bob"))[0].err)
		for _, other := range []string{"Eve", "Mallory"} { // without the look, and with it
			all := together(t, db, s, one, named("bob"), named(other))
			want(t, "bob, who is Bob", all[0].err, stock.ErrDuplicate)
			ok(t, other, all[1].err)
		}
		wantBooks[Texted](t, db, 1000, 3)
	})
}

// TestSale_WithoutReturning: MySQL has no RETURNING, so no form of statement uses it there. The
// UPDATE has no parameters either, so it needs no prepare, which is a round trip.
func TestSale_WithoutReturning(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" || slices.Contains(db.Callback().Create().Clauses, "RETURNING") {
			return
		}
		if db.PrepareStmt { // on MySQL itself: the parameters stay
			return
		}
		fresh(t, withoutKeys(db), 1000, &Order{}, &Lined{}, &Line{})
		f := &faulty{}
		s := newSale[Order](t, through(db, f), unique, stock.First())
		for range 3 { // plain, refused, with the look
			together(t, db, s, one, orders(9)...)
		}
		_, err := s.Sell(t.Context(), 42, 1, &Order{SKU: 42, Buyer: 99})
		ok(t, "alone", err)
		together(t, db, s, one, &Order{SKU: 42, Buyer: 101}, &Order{SKU: 42, Buyer: 102, N: 5000})
		all := together(t, db, newSale[Lined](t, through(db, f)), one, lined("a", "b")...)
		wantLines(t, db, all)
		seen := f.seen()
		for form, pattern := range map[string]string{
			"take":           "^UPDATE `stocks` SET `remaining`=`remaining` - 8 \\+ 0 \\* LAST_INSERT_ID[^?]*$",
			"lock":           "^SELECT .* FOR UPDATE$",
			"look":           "^SELECT .* IN \\(\\(",
			"step":           "^SELECT @@auto_increment_increment$",
			"one order":      "^INSERT INTO `orders` [^)]*\\) VALUES [^)]*\\)$",
			"several orders": "^INSERT INTO `orders` .*\\),\\(",
			"children":       "^INSERT INTO `lines` .*ON DUPLICATE",
			"begin to try":   "^SAVEPOINT ",
			"refused":        "^ROLLBACK TO SAVEPOINT ",
			"tried":          "^RELEASE SAVEPOINT ",
		} {
			if !slices.ContainsFunc(seen, regexp.MustCompile(pattern).MatchString) {
				t.Errorf("no statement was seen that is: %s", form)
			}
		}
		for _, query := range seen {
			if strings.Contains(query, "RETURNING") || strings.HasPrefix(query, "UPDATE") && strings.Contains(query, "?") {
				t.Error(query)
			}
		}
	})
}

type Soft struct {
	ID        int64 `gorm:"primaryKey"`
	SKU       int64 `gorm:"uniqueIndex:one,where:deleted_at IS NULL"`
	Buyer     int64 `gorm:"uniqueIndex:one,where:deleted_at IS NULL"`
	DeletedAt gorm.DeletedAt
}

// TestSale_SoftDelete: a buyer who canceled buys again if the index allows it.
func TestSale_SoftDelete(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Soft{})
		s := newSale[Soft](t, db, unique)
		sell := func(buyers ...int64) (errs []error) {
			var all []*Soft
			for _, b := range buyers {
				all = append(all, &Soft{SKU: 42, Buyer: b})
			}
			for _, x := range together(t, db, s, one, all...) {
				errs = append(errs, x.err)
			}
			return errs
		}
		ok(t, "Sell", errors.Join(sell(1, 2, 3, 4)...))
		ok(t, "Delete", db.Where("buyer = 1").Delete(&Soft{}).Error)
		for range 2 { // without the look, and with it
			errs := sell(2, 1)
			want(t, "a repeat", errs[0], stock.ErrDuplicate)
			if db.Name() == "mysql" { // it has no partial index
				want(t, "a canceled buyer", errs[1], stock.ErrDuplicate)
				continue
			}
			ok(t, "a canceled buyer", errs[1])
			ok(t, "Delete", db.Where("buyer = 1").Delete(&Soft{}).Error)
		}
	})
}

type Defaulted struct {
	ID     int64 `gorm:"primaryKey"`
	Buyer  int64
	Status string `gorm:"size:16;default:(-)"` // the column has a default of its own
	Level  int64  `gorm:"default:7"`
}

// TestSale_Defaults: orders that leave different columns to the database.
func TestSale_Defaults(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Defaulted{})
		if db.Name() == "sqlite" {
			ok(t, "DROP", db.Exec("DROP TABLE defaulteds").Error)
			ok(t, "CREATE", db.Exec("CREATE TABLE defaulteds (id integer PRIMARY KEY AUTOINCREMENT, buyer integer, "+
				"status text DEFAULT 'new', level integer)").Error)
		} else {
			ok(t, "ALTER", db.Exec("ALTER TABLE defaulteds ALTER COLUMN status SET DEFAULT 'new'").Error)
		}
		f := &faulty{}
		s := newSale[Defaulted](t, through(db, f))
		f.begins.Store(0)
		all := together(t, db, s, one, &Defaulted{Buyer: 1}, &Defaulted{Buyer: 2, Status: "vip"}, &Defaulted{Buyer: 3, Level: 1}, &Defaulted{Buyer: 4})
		for i, expected := range []Defaulted{{Status: "new", Level: 7}, {Status: "vip", Level: 7}, {Status: "new", Level: 1}, {Status: "new", Level: 7}} {
			ok(t, "Sell", all[i].err)
			var stored Defaulted
			ok(t, "Take", db.Take(&stored, all[i].order.ID).Error)
			if stored.Buyer != int64(i+1) || stored.Status != expected.Status || stored.Level != expected.Level {
				t.Errorf("told %+v, stored %+v", *all[i].order, stored)
			}
		}
		if f.begins.Load() != 1 {
			t.Errorf("%d transactions", f.begins.Load())
		}
	})
}

type Wide struct {
	ID                                                     int64 `gorm:"primaryKey"`
	A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12, A13 int64
	B1, B2, B3, B4, B5, B6, B7, B8, B9, B10, B11, B12, B13 int64
	Parts                                                  []Part
}
type Part struct {
	ID     int64 `gorm:"primaryKey"`
	WideID int64
	N      int64
}

// TestSale_Parameters: more parameters than a statement may have, even for children.
func TestSale_Parameters(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		db = withoutKeys(db)
		calls, parts := 32, 520 // two parameters each
		if db.Name() != "sqlite" {
			parts = 1030
		}
		fresh(t, db, 100_000, &Wide{}, &Part{})
		f := &faulty{}
		s := newSale[Wide](t, through(db, f), stock.Within(5*time.Minute))
		var all []*Wide
		for i := range calls {
			w := &Wide{A1: int64(i)}
			for n := range parts {
				w.Parts = append(w.Parts, Part{N: int64(n)})
			}
			all = append(all, w)
		}
		f.begins.Store(0)
		for _, x := range together(t, db, s, one, all...) {
			ok(t, "Sell", x.err)
			if last := x.order.Parts[parts-1]; last.WideID != x.order.ID || last.ID == 0 {
				t.Errorf("%+v", last)
			}
		}
		if f.begins.Load() != 1 {
			t.Errorf("%d transactions", f.begins.Load())
		}
		if n := count[Part](t, db); n != int64(calls*parts) {
			t.Errorf("%d children", n)
		}
	})
}

// TestSale_PreparedStatements: batches of all sizes need few statements.
func TestSale_PreparedStatements(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1<<40, &Plain{})
		f := &faulty{}
		s := newSale[Plain](t, through(db, f), stock.Batch(32))
		for size := 1; size <= 32; size++ {
			for _, x := range together(t, db, s, one, plains(size)...) {
				ok(t, "Sell", x.err)
			}
		}
		texts := make(map[string]bool)
		for _, query := range f.seen() {
			if strings.HasPrefix(query, "SELECT @@") { // asked once, where there is no RETURNING
				continue
			}
			// Drivers prepare statements with parameters, and PrepareStmt all of them.
			if strings.ContainsAny(query, "?$") || db.PrepareStmt && query != "BEGIN" {
				texts[query] = true
			}
		}
		// The UPDATE and six sizes of INSERT.
		if len(texts) > 7 {
			t.Errorf("%d statements: %v", len(texts), texts)
		}
		wantBooks[Plain](t, db, 1<<40, 32*33/2)
	})
}

// TestSale_RowCheck: a CHECK or a trigger on the row that refuses the sum, but each order alone.
func TestSale_RowCheck(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		for _, query := range map[string][]string{
			"sqlite": {`CREATE TRIGGER few BEFORE UPDATE ON stocks WHEN OLD.remaining - NEW.remaining > 1 BEGIN SELECT RAISE(ABORT, 'too many at once'); END`},
			"mysql":  {`DROP TRIGGER IF EXISTS few`, `CREATE TRIGGER few BEFORE UPDATE ON stocks FOR EACH ROW IF OLD.remaining - NEW.remaining > 1 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too many at once'; END IF`},
			"postgres": {`CREATE OR REPLACE FUNCTION few() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF OLD.remaining - NEW.remaining > 1 THEN RAISE EXCEPTION 'too many at once'; END IF; RETURN NEW; END $$`,
				`CREATE TRIGGER few BEFORE UPDATE ON stocks FOR EACH ROW EXECUTE FUNCTION few()`},
		}[db.Name()] {
			pool, _ := db.DB()
			_, err := pool.Exec(query)
			ok(t, "Exec", err)
		}
		s := newSale[Plain](t, db)
		quantity := func(i int) int64 { return []int64{1, 1, 2, 1}[i] }
		for i, x := range together(t, db, s, quantity, plains(4)...) {
			if (x.err == nil) == (i == 2) {
				t.Errorf("%v", x)
			}
		}
		wantBooks[Plain](t, db, 1000, 3)
	})
}

// concurrently sells in all sales at once, as processes would, to buyers some of whom repeat.
func concurrently(t *testing.T, sales []*stock.Sale[Stock, Order], callers, each int) (sold, repeats int64) {
	t.Helper()
	var wg sync.WaitGroup
	var good, again, next atomic.Int64
	for _, s := range sales {
		for range callers {
			wg.Go(func() {
				for range each {
					buyer := next.Add(1)
					if buyer%2 == 0 {
						buyer = max(1, buyer-20)
					}
					switch _, err := s.Sell(context.Background(), 42, 1, &Order{SKU: 42, Buyer: buyer}); {
					case err == nil:
						good.Add(1)
					case errors.Is(err, stock.ErrDuplicate):
						again.Add(1)
					default:
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	return good.Load(), again.Load()
}

// TestSale_Deferred: SQLite with its own BEGIN, and two processes.
func TestSale_Deferred(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "deferred.db")
	open := func() *gorm.DB {
		pool, err := sql.Open(sqlite.DriverName, "file:"+path+"?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)")
		ok(t, "Open", err)
		t.Cleanup(func() { _ = pool.Close() })
		pool.SetMaxOpenConns(1)
		db, err := gorm.Open(&sqlite.Dialector{Conn: pool}, &gorm.Config{Logger: logger.Discard})
		ok(t, "Open", err)
		return db
	}
	db := open()
	fresh(t, db, 1<<40, &Order{})
	sales := []*stock.Sale[Stock, Order]{newSale[Order](t, open(), unique), newSale[Order](t, open(), unique)}
	sold, repeats := concurrently(t, sales, 8, 20)
	if sold == 0 || repeats == 0 {
		t.Errorf("sold %d, repeats %d", sold, repeats)
	}
	wantBooks[Order](t, db, 1<<40, sold)
}

type Campaign struct {
	ID    int64 `gorm:"primaryKey"`
	SKU   int64
	Buyer int64 `gorm:"uniqueIndex"`
}

// TestSale_TwoRows: buyers unique over several rows. Batches insert them in one order, so that they
// do not wait for each other.
func TestSale_TwoRows(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1<<40, &Campaign{})
		ok(t, "Create", db.Create(&Stock{SKU: 43, Remaining: 1 << 40}).Error)
		f := &faulty{}
		s := newSale[Campaign](t, through(db, f), stock.Unique("buyer"))
		var sold atomic.Int64
		var wg sync.WaitGroup
		for sku := int64(42); sku <= 43; sku++ {
			for i := range int64(16) {
				wg.Go(func() {
					for n := range int64(10) {
						buyer := n*16 + i
						if sku == 43 {
							buyer = n*16 + 15 - i
						}
						_, err := s.Sell(context.Background(), sku, 1, &Campaign{SKU: sku, Buyer: buyer})
						if err == nil {
							sold.Add(1)
						} else if !errors.Is(err, stock.ErrDuplicate) {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		if n := count[Campaign](t, db); n != 160 || sold.Load() != n {
			t.Errorf("sold %d, stored %d", sold.Load(), n)
		}
		// Within a statement the order is that of the unique column.
		f.seen()
		together(t, db, s, one, &Campaign{Buyer: 909}, &Campaign{Buyer: 903}, &Campaign{Buyer: 907}, &Campaign{Buyer: 901})
		var stored []int64
		ok(t, "Pluck", db.Model(&Campaign{}).Where("buyer > 900").Order("id").Pluck("buyer", &stored).Error)
		if fmt.Sprint(stored) != "[901 903 907 909]" {
			t.Errorf("stored in the order %v", stored)
		}
	})
}

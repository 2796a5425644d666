package stock_test

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock/stock"
)

// withoutKeys has db make no foreign keys, as many set it.
func withoutKeys(db *gorm.DB) *gorm.DB {
	db = db.Session(&gorm.Session{})
	db.DisableForeignKeyConstraintWhenMigrating = true
	return db
}

type Lined struct {
	ID    int64  `gorm:"primaryKey"`
	Note  string `gorm:"size:64"`
	Lines []Line `gorm:"foreignKey:LinedID"`
}
type Line struct {
	ID      int64 `gorm:"primaryKey"`
	LinedID int64
	Name    string `gorm:"size:64;uniqueIndex"`
}

// wantLines checks that each order that was sold has its own line, as told.
func wantLines(t *testing.T, db *gorm.DB, all []told[Lined]) {
	t.Helper()
	for _, x := range all {
		if x.err != nil {
			continue
		}
		var stored Lined
		ok(t, "Take", db.Preload("Lines").Take(&stored, x.order.ID).Error)
		if stored.Note != x.order.Note || len(stored.Lines) != 1 || stored.Lines[0] != x.order.Lines[0] || stored.Lines[0].Name != x.order.Note {
			t.Errorf("told %+v, stored %+v", *x.order, stored)
		}
	}
}

func lined(notes ...string) (all []*Lined) {
	for _, n := range notes {
		all = append(all, &Lined{Note: n, Lines: []Line{{Name: n}}})
	}
	return all
}

// TestSale_IDStep: a server whose ids are two apart, as those of a cluster.
func TestSale_IDStep(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" {
			return
		}
		pool, _ := db.DB()
		pool.SetMaxOpenConns(1)
		defer pool.SetMaxOpenConns(0)
		fresh(t, withoutKeys(db), 1000, &Lined{}, &Line{})
		ok(t, "SET", db.Exec("SET SESSION auto_increment_increment = 2").Error)
		s := newSale[Lined](t, db)
		all := together(t, db, s, one, lined("a", "b", "c", "d")...)
		for _, x := range all {
			ok(t, "Sell", x.err)
		}
		wantLines(t, db, all)
	})
}

// TestSale_MixedKeys: orders with their own key among others.
func TestSale_MixedKeys(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		s := newSale[Plain](t, db)
		all := plains(8)
		all[2].ID, all[5].ID = 50, 60
		for _, x := range together(t, db, s, one, all...) {
			ok(t, "Sell", x.err)
			var stored Plain
			ok(t, "Take", db.Take(&stored, x.order.ID).Error)
			if stored != *x.order {
				t.Errorf("told %+v, stored %+v", *x.order, stored)
			}
		}
		if all[2].ID != 50 || all[5].ID != 60 {
			t.Error("a key that was given changed")
		}
		// Children with their own key among others.
		fresh(t, withoutKeys(db), 1000, &Lined{}, &Line{})
		owners := lined("a", "b", "c", "d")
		owners[1].Lines[0].ID = 50
		told := together(t, db, newSale[Lined](t, db), one, owners...)
		for _, x := range told {
			ok(t, "Sell", x.err)
		}
		wantLines(t, db, told)
	})
}

type Person struct {
	ID    int64  `gorm:"primaryKey"`
	Email string `gorm:"uniqueIndex;size:64"`
}
type Owned struct {
	ID       int64  `gorm:"primaryKey"`
	Note     string `gorm:"size:64"`
	PersonID int64
	Person   *Person
	Tags     []Tag `gorm:"many2many:owned_tags"`
}
type Tag struct {
	ID   int64  `gorm:"primaryKey"`
	Name string `gorm:"uniqueIndex;size:64"`
}

// TestSale_SharedParent: a person and a tag that are stored already, given without their keys. GORM
// would deal the ids of the others out in order.
func TestSale_SharedParent(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		db = withoutKeys(db)
		ok(t, "DropTable", db.Migrator().DropTable("owned_tags"))
		fresh(t, db, 1000, &Person{}, &Tag{}, &Owned{})
		ok(t, "Create", db.Create(&Person{Email: "b"}).Error)
		ok(t, "Create", db.Create(&Tag{Name: "c"}).Error)
		s := newSale[Owned](t, db)
		var all []*Owned
		for _, n := range []string{"a", "b", "c", "d"} {
			all = append(all, &Owned{Note: n, Person: &Person{Email: n}, Tags: []Tag{{Name: n}}})
		}
		given := all[0].Person
		for _, x := range together(t, db, s, one, all...) {
			if x.err != nil {
				continue // as by hand
			}
			var stored Owned
			ok(t, "Take", db.Preload("Person").Preload("Tags").Take(&stored, x.order.ID).Error)
			if stored.Person != nil && stored.Person.Email != stored.Note {
				t.Errorf("%s belongs to %s", stored.Note, stored.Person.Email)
			}
			for _, tag := range stored.Tags {
				if tag.Name != stored.Note {
					t.Errorf("%s has the tag %s", stored.Note, tag.Name)
				}
			}
		}
		if given.ID != 0 {
			t.Error("the caller's own person was written to")
		}
	})
}

// TestSale_RolledBackChildren: a refused order makes the batch run again; nobody keeps ids of the
// first try.
func TestSale_RolledBackChildren(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, withoutKeys(db), 1000, &Lined{}, &Line{})
		ok(t, "Create", db.Create(&Line{Name: "taken"}).Error)
		f := &faulty{}
		first := true
		f.statement = func(query string) error {
			if first && strings.Contains(query, "lines") { // another process sells between the tries
				first = false
				return errors.New("refused once")
			}
			return nil
		}
		tries := 0
		f.begin = func() error {
			if tries++; tries == 2 {
				return db.Create(&[]*Lined{{Note: "x", Lines: []Line{{Name: "x"}}}, {Note: "y", Lines: []Line{{Name: "y"}}}}).Error
			}
			return nil
		}
		s := newSale[Lined](t, through(db, f))
		all := together(t, db, s, one, lined("a", "b", "taken", "d")...)
		for i, x := range all {
			// MySQL's ON DUPLICATE KEY UPDATE moves the stranger's child, as by hand.
			if i != 2 || x.err != nil && db.Name() != "mysql" {
				continue
			}
			if db.Name() != "mysql" {
				t.Errorf("the child that is taken: %v", x)
			}
			all[i].err = errors.New("not looked at")
		}
		for i, x := range all {
			if i != 2 {
				ok(t, "Sell", x.err)
			}
		}
		wantLines(t, db, all)
		if db.Name() != "mysql" && (all[2].order.ID != 0 || all[2].order.Lines[0].ID != 0) {
			t.Errorf("after an error the order is %+v", *all[2].order)
		}
		f.commit = func(tx gorm.TxCommitter) error { ok(t, "Rollback", tx.Rollback()); return errors.New("cut") }
		for _, x := range together(t, db, s, one, lined("e", "f")...) {
			if want(t, "cut", x.err, stock.ErrCommitUnknown); x.order.ID != 0 || x.order.Lines[0].ID != 0 {
				t.Errorf("after an error the order is %+v", *x.order)
			}
		}
	})
}

// TestSale_Overflow: quantities that are no quantities, and sums that overflow.
func TestSale_Overflow(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 5, &Plain{})
		s := newSale[Plain](t, db)
		for _, n := range []int64{0, -1, math.MinInt64} {
			if _, err := s.Sell(t.Context(), 42, n, &Plain{}); err == nil || errors.Is(err, stock.ErrInsufficient) {
				t.Errorf("%d: %v", n, err)
			}
		}
		for _, x := range together(t, db, s, func(int) int64 { return 1 << 62 }, plains(4)...) {
			want(t, "2^62", x.err, stock.ErrInsufficient)
		}
		wantBooks[Plain](t, db, 5, 0)
		ok(t, "Update", db.Model(&Stock{}).Where("sku = 42").Update("remaining", int64(math.MaxInt64)).Error)
		s = newSale[Plain](t, db)
		for i, x := range together(t, db, s, func(int) int64 { return math.MaxInt64/2 + 1 }, plains(4)...) {
			if (x.err == nil) != (i == 0) {
				t.Errorf("%d: %v", i, x)
			}
		}
	})
}

// TestSale_RepeatInLine: a repeat waits for the next batch, and does not cost the batch of the first
// one a second transaction.
func TestSale_RepeatInLine(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 10, &Order{})
		f := &faulty{}
		s := newSale[Order](t, through(db, f), unique)
		all := together(t, db, s, one, &Order{SKU: 42, Buyer: 1}, &Order{SKU: 42, Buyer: 1}, &Order{SKU: 42, Buyer: 2})
		want(t, "a repeat", all[1].err, stock.ErrDuplicate)
		ok(t, "the others", errors.Join(all[0].err, all[2].err))
		for _, query := range f.seen() {
			if strings.HasPrefix(query, "SAVEPOINT") {
				t.Error("the batch was split")
			}
		}
		wantBooks[Order](t, db, 10, 2)
	})
}

// TestSale_RepeatBehindFailed: a repeat is no duplicate of an order that was not stored.
func TestSale_RepeatBehindFailed(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		for _, looks := range []bool{false, true} {
			fresh(t, db, 10, &Order{})
			s := newSale[Order](t, db, unique)
			if looks {
				stored := &Order{SKU: 42, Buyer: 99}
				together(t, db, s, one, stored, &Order{SKU: 42, Buyer: 99})
			}
			quantity := func(i int) int64 { return []int64{100, 1, 1, 1}[i] }
			all := together(t, db, s, quantity, &Order{SKU: 42, Buyer: 1}, &Order{SKU: 42, Buyer: 1},
				&Order{SKU: 42, Buyer: 2, N: 5000}, &Order{SKU: 42, Buyer: 2})
			want(t, "too much", all[0].err, stock.ErrInsufficient)
			ok(t, "the second call of that buyer", all[1].err)
			if all[2].err == nil || errors.Is(all[2].err, stock.ErrDuplicate) {
				t.Errorf("a refused order: %v", all[2])
			}
			ok(t, "the second call behind a refused one", all[3].err)
		}
	})
}

type Hooked struct {
	ID    int64 `gorm:"primaryKey"`
	Buyer int64
	Value string `gorm:"size:64"`
	Note  string `gorm:"size:64"`
}

var hookRuns sync.Map // by value and buyer: *atomic.Int64

func (h *Hooked) BeforeCreate(tx *gorm.DB) error {
	if runs, ok := hookRuns.Load(fmt.Sprint(h.Value, h.Note)); ok {
		runs.(*atomic.Int64).Add(1)
	}
	switch h.Buyer {
	case 101:
		var none *Hooked
		none.Value = "a nil pointer panics"
	case 102:
		runtime.Goexit()
	case 103:
		panic("thirteen")
	case 104:
		return errHook
	case 105:
		h.Value, _ = tx.Statement.Context.Value(tenantKey{}).(string)
	case 106:
		stack := make([]byte, 1<<16)
		h.Value = fmt.Sprint(strings.Contains(string(stack[:runtime.Stack(stack, false)]), "TestSale_Lone"))
	}
	return nil
}

func (h *Hooked) AfterCreate(tx *gorm.DB) error {
	if h.Buyer == 107 { // it returns when the time of its batch is over
		<-tx.Statement.Context.Done()
	}
	return nil
}

type tenantKey struct{}

var errHook = errors.New("refused by a hook")

// TestSale_HookPanics: a panic reaches its caller and nobody else.
func TestSale_HookPanics(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Hooked{})
		s := newSale[Hooked](t, db)
		for _, batch := range [][]int64{{1, 101, 2, 103, 104, 3, 102, 4}, {101}, {103}, {102}} {
			before, sold := count[Hooked](t, db), int64(0)
			var all []*Hooked
			for _, buyer := range batch {
				all = append(all, &Hooked{Buyer: buyer})
			}
			for i, x := range together(t, db, s, one, all...) {
				switch batch[i] {
				case 101, 103:
					if x.panic == nil || !strings.Contains(fmt.Sprint(x.panic), "nil pointer") && !strings.Contains(fmt.Sprint(x.panic), "thirteen") {
						t.Errorf("buyer %d: %v", batch[i], x)
					}
				case 102:
					if x.order.ID != 0 {
						t.Errorf("Goexit: %v", x)
					}
				case 104:
					want(t, "a hook's error", x.err, errHook)
				default:
					if ok(t, "Sell", x.err); x.panic != nil {
						t.Errorf("%v", x)
					}
					sold++
				}
			}
			if stored := count[Hooked](t, db) - before; stored != sold {
				t.Errorf("%v: %d orders are stored", batch, stored)
			}
		}
		ok(t, "a later call", together(t, db, s, one, &Hooked{Buyer: 9})[0].err)
		wantBooks[Hooked](t, db, 1000, 5)
		eventually(t, "no lane is left", func() bool { return stock.Lanes(s) == 0 })
	})
}

// TestSale_SwallowedInsert: a trigger or a rule drops a row without an error.
func TestSale_SwallowedInsert(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Plain{})
		switch db.Name() {
		case "mysql":
			return
		case "postgres":
			ok(t, "Exec", db.Exec(`CREATE OR REPLACE FUNCTION nope() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.buyer = 2 THEN RETURN NULL; END IF; RETURN NEW; END $$`).Error)
			ok(t, "Exec", db.Exec(`CREATE TRIGGER nope BEFORE INSERT ON plains FOR EACH ROW EXECUTE FUNCTION nope()`).Error)
		case "sqlite":
			ok(t, "Exec", db.Exec(`CREATE TRIGGER nope BEFORE INSERT ON plains WHEN NEW.buyer = 2 BEGIN SELECT RAISE(IGNORE); END`).Error)
		}
		s := newSale[Plain](t, db)
		for i, x := range together(t, db, s, one, plains(4)...) {
			if (x.err == nil) == (i == 1) {
				t.Errorf("%v", x)
			}
			if x.err == nil {
				var stored Plain
				ok(t, "Take", db.Take(&stored, x.order.ID).Error)
				if stored != *x.order {
					t.Errorf("told %+v, stored %+v", *x.order, stored)
				}
			}
		}
		wantBooks[Plain](t, db, 1000, 3)
	})
}

// TestSale_SwallowedChild: a trigger drops a child without an error. The others keep their own.
func TestSale_SwallowedChild(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, withoutKeys(db), 1000, &Lined{}, &Line{})
		switch db.Name() {
		case "mysql":
			return
		case "postgres":
			ok(t, "Exec", db.Exec(`CREATE OR REPLACE FUNCTION no_b() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.name = 'b' THEN RETURN NULL; END IF; RETURN NEW; END $$`).Error)
			ok(t, "Exec", db.Exec(`CREATE TRIGGER no_b BEFORE INSERT ON lines FOR EACH ROW EXECUTE FUNCTION no_b()`).Error)
		case "sqlite":
			ok(t, "Exec", db.Exec(`CREATE TRIGGER no_b BEFORE INSERT ON lines WHEN NEW.name = 'b' BEGIN SELECT RAISE(IGNORE); END`).Error)
		}
		all := together(t, db, newSale[Lined](t, db), one, lined("a", "b", "c", "d")...)
		for i := range all {
			if i != 1 { // which is stored without its child, as by hand
				ok(t, "Sell", all[i].err)
			}
		}
		wantLines(t, db, append(all[:1], all[2:]...))
	})
}

// TestSale_RefusedOrders: refused orders cost their callers, and each order is tried three times at
// most.
func TestSale_RefusedOrders(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Hooked{})
		f := &faulty{}
		s := newSale[Hooked](t, through(db, f))
		var all []*Hooked
		var runs [64]atomic.Int64
		for i := range runs {
			all = append(all, &Hooked{Buyer: 1, Value: t.Name()[:20] + db.Name(), Note: fmt.Sprint(i)})
			hookRuns.Store(fmt.Sprint(all[i].Value, i), &runs[i])
		}
		all[13].Buyer, all[14].Buyer, all[40].Buyer = 104, 104, 104
		for i, x := range together(t, db, s, one, all...) {
			if i == 13 || i == 14 || i == 40 {
				want(t, "refused", x.err, errHook)
				continue
			}
			if ok(t, "Sell", x.err); x.order.ID == 0 {
				t.Errorf("%v", x)
			}
		}
		for i := range runs {
			if n := runs[i].Load(); n < 2 || n > 3 {
				t.Errorf("the hook of order %d ran %d times", i, n)
			}
		}
		if f.begins.Load() != 2 {
			t.Errorf("%d transactions", f.begins.Load())
		}
		savepoints := 0
		for _, query := range f.seen() {
			if strings.HasPrefix(query, "SAVEPOINT") {
				savepoints++
			}
		}
		if savepoints > 8+2*8 { // eight chunks, and two of them one by one
			t.Errorf("%d savepoints", savepoints)
		}
		wantBooks[Hooked](t, db, 1000, 61)
	})
}

type Numbered struct {
	ID     int64  `gorm:"primaryKey"`
	SKU    int64  `gorm:"uniqueIndex:one"`
	Buyer  int64  `gorm:"uniqueIndex:one"`
	Number string `gorm:"uniqueIndex;size:64"`
}

// TestSale_OtherUnique: a unique index that is not the sale's makes no duplicate of it.
func TestSale_OtherUnique(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1000, &Numbered{})
		s := newSale[Numbered](t, db, unique)
		all := together(t, db, s, one, &Numbered{SKU: 42, Buyer: 1, Number: "R"}, &Numbered{SKU: 42, Buyer: 2, Number: "R"})
		if all[1].err == nil || errors.Is(all[1].err, stock.ErrDuplicate) {
			t.Errorf("the second order of a number: %v", all[1])
		}
		ok(t, "the first one", all[0].err)
		_, err := s.Sell(t.Context(), 42, 1, &Numbered{SKU: 42, Buyer: 3, Number: "R"})
		if err == nil || errors.Is(err, stock.ErrDuplicate) {
			t.Errorf("alone: %v", err)
		}
		wantBooks[Numbered](t, db, 1000, 1)
	})
}

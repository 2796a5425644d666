package gormlock_test

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// Retailer has an association of each kind.
type Retailer struct {
	ID      uint
	Name    string `gorm:"size:64"`
	OwnerID *uint
	Owner   *Owner
	Sign    *Sign
	Goods   []Good
	Labels  []Label `gorm:"many2many:retailer_labels"`
	Cover   *Photo  `gorm:"polymorphic:Of;polymorphicValue:cover"`
	Photos  []Photo `gorm:"polymorphic:Of;polymorphicValue:shop"`
}

type Owner struct {
	ID   uint
	Name string `gorm:"size:64"`
}

type Sign struct {
	ID         uint
	Name       string `gorm:"size:64"`
	RetailerID *uint
}

type Good struct {
	ID         uint
	Name       string `gorm:"size:64"`
	RetailerID *uint
}

type Label struct {
	ID   uint
	Name string `gorm:"size:64"`
}

type Photo struct {
	ID     uint
	Name   string  `gorm:"size:64"`
	OfID   *uint   `gorm:"index"`
	OfType *string `gorm:"size:64"`
}

// shopTables are in the order in which rows can be deleted.
var shopTables = []string{"retailer_labels", "photos", "labels", "goods", "signs", "retailers", "owners"}

// associated is one kind of association: the value that a shop has at first, and another one.
type associated struct {
	before, other func() any
	maps          bool // GORM also takes a map for a value
}

var associations = map[string]associated{
	"Owner":  {func() any { return &Owner{ID: 1, Name: "a"} }, func() any { return &Owner{ID: 2, Name: "b"} }, false},
	"Sign":   {func() any { return &Sign{ID: 1, Name: "a"} }, func() any { return &Sign{ID: 2, Name: "b"} }, false},
	"Goods":  {func() any { return &Good{ID: 1, Name: "a"} }, func() any { return &Good{ID: 2, Name: "b"} }, true},
	"Labels": {func() any { return &Label{ID: 1, Name: "a"} }, func() any { return &Label{ID: 2, Name: "b"} }, true},
	"Cover":  {func() any { return &Photo{ID: 1, Name: "a"} }, func() any { return &Photo{ID: 2, Name: "b"} }, false},
	"Photos": {func() any { return &Photo{ID: 1, Name: "a"} }, func() any { return &Photo{ID: 2, Name: "b"} }, true},
}

// associationWrite is a call of an association method; ofMap reports whether it gives GORM a map.
type associationWrite struct {
	ofMap bool
	call  func(association *gorm.Association) error
}

func (a associated) writes() map[string]associationWrite {
	writes := map[string]associationWrite{
		"Append":           {false, func(on *gorm.Association) error { return on.Append(a.other()) }},
		"Replace":          {false, func(on *gorm.Association) error { return on.Replace(a.other()) }},
		"Delete":           {false, func(on *gorm.Association) error { return on.Delete(a.before()) }},
		"Clear":            {false, func(on *gorm.Association) error { return on.Clear() }},
		"Unscoped.Replace": {false, func(on *gorm.Association) error { return on.Unscoped().Replace(a.other()) }},
		"Unscoped.Delete":  {false, func(on *gorm.Association) error { return on.Unscoped().Delete(a.before()) }},
		"Unscoped.Clear":   {false, func(on *gorm.Association) error { return on.Unscoped().Clear() }},
	}
	if a.maps {
		row := func() map[string]any { return map[string]any{"id": uint(2), "name": "b"} }
		writes["Append a map"] = associationWrite{true, func(on *gorm.Association) error { return on.Append(row()) }}
		writes["Append both"] = associationWrite{true, func(on *gorm.Association) error {
			return on.Append([]map[string]any{row()}, a.before())
		}}
		writes["Replace by a map"] = associationWrite{true, func(on *gorm.Association) error { return on.Replace(row()) }}
	}
	return writes
}

// openShop returns a shop with one association, alone in all tables.
func openShop(t *testing.T, db *gorm.DB, name string) *Retailer {
	t.Helper()
	for _, table := range shopTables {
		ok(t, "DELETE", db.Exec("DELETE FROM "+table).Error)
	}
	shop := &Retailer{ID: 1, Name: "shop"}
	ok(t, "Create", db.Create(shop).Error)
	ok(t, "Append", db.Model(shop).Association(name).Append(associations[name].before()))
	return shop
}

// inShop returns the rows of all tables.
func inShop(t *testing.T, db *gorm.DB) (all []string) {
	t.Helper()
	for _, table := range shopTables {
		var rows []map[string]any
		ok(t, "Find", db.Table(table).Find(&rows).Error)
		var texts []string
		for _, row := range rows {
			texts = append(texts, fmt.Sprintf("%s: %v", table, slices.Sorted(maps.Values(printed(row)))))
		}
		slices.Sort(texts)
		all = append(all, texts...)
	}
	return all
}

func printed(row map[string]any) map[string]string {
	texts := make(map[string]string)
	for column, value := range row {
		texts[column] = fmt.Sprintf("%s=%v", column, value)
	}
	return texts
}

// shopped runs fn for each write of each kind of association.
func shopped(t *testing.T, fn func(t *testing.T, db *gorm.DB, j *journal, name string, write associationWrite)) {
	t.Helper()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Owner{}, &Retailer{}, &Sign{}, &Good{}, &Label{}, &Photo{}))
		j := record(t, db)
		for name, a := range associations {
			for method, write := range a.writes() {
				t.Run(name+"."+method, func(t *testing.T) { fn(t, db, j, name, write) })
			}
		}
	})
}

// TestAssociation_GuardWithoutTransaction does what GORM does without a guard. Each statement has
// its own lock, except those that GORM runs without the scopes of its caller: see
// TestAssociation_Map.
func TestAssociation_GuardWithoutTransaction(t *testing.T) {
	t.Parallel()
	forms := map[string]func(db *gorm.DB) *gorm.DB{
		"Guard": func(db *gorm.DB) *gorm.DB { return db.Scopes(gormlock.Guard("k")) },
		"WithGuard": func(db *gorm.DB) *gorm.DB {
			return db.WithContext(gormlock.WithGuard(context.Background(), "k"))
		},
		"no default transaction": func(db *gorm.DB) *gorm.DB {
			return db.Session(&gorm.Session{SkipDefaultTransaction: true}).Scopes(gormlock.Guard("k"))
		},
		"prepared session": func(db *gorm.DB) *gorm.DB {
			return db.Session(&gorm.Session{PrepareStmt: true}).Scopes(gormlock.Guard("k"))
		},
	}
	shopped(t, func(t *testing.T, db *gorm.DB, j *journal, name string, write associationWrite) {
		plain := write.call(db.Model(openShop(t, db, name)).Association(name))
		expected := inShop(t, db)
		for form, guard := range forms {
			if !long && db.Name() != "sqlite" && form != "Guard" && form != "WithGuard" {
				continue // a session is GORM's, and the same on each database
			}
			shop := openShop(t, db, name)
			j.clear()
			if err := write.call(guard(db).Model(shop).Association(name)); (err != nil) != (plain != nil) {
				t.Errorf("%s: %v, and without a guard %v", form, err, plain)
			}
			if locks, unlocks := j.count("lock k"), j.count("unlock k"); locks != unlocks || locks == 0 && !write.ofMap {
				t.Errorf("%s: locked %d times, and unlocked %d times", form, locks, unlocks)
			}
			if got := inShop(t, db); !slices.Equal(got, expected) {
				t.Errorf("%s: there is %q, want %q", form, got, expected)
			}
		}
	})
}

// TestAssociation_GenericSet does under a guard what it does without one: Set of gorm.G may run several
// statements for an association, too.
func TestAssociation_GenericSet(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Owner{}, &Retailer{}, &Sign{}, &Good{}, &Label{}, &Photo{}))
		j := record(t, db)
		ctx := gormlock.WithGuard(t.Context(), "k")
		good := clause.Assignment{Column: clause.Column{Name: "name"}, Value: "b"}
		for name, change := range map[string]clause.Association{
			"create":        {Association: "Goods", Type: clause.OpCreate, Values: []any{&Good{ID: 2}}},
			"create by Set": {Association: "Goods", Type: clause.OpCreate, Set: []clause.Assignment{good, {Column: clause.Column{Name: "id"}, Value: 3}}},
			"unlink":        {Association: "Goods", Type: clause.OpUnlink},
			"delete":        {Association: "Labels", Type: clause.OpDelete},
			"update":        {Association: "Sign", Type: clause.OpUpdate, Set: []clause.Assignment{good}},
		} {
			write := func(db *gorm.DB, ctx context.Context) error {
				shop := gorm.G[Retailer](db).Where("id = ?", 1)
				_, err := shop.Set(clause.Assignment{Column: clause.Column{Name: "name"}, Value: "new"}, change).Update(ctx)
				return err
			}
			after := func(how string, write func() error) []string {
				openShop(t, db, change.Association)
				j.clear()
				ok(t, name+" "+how, write())
				return inShop(t, db)
			}
			expected := after("without a guard", func() error { return write(db, t.Context()) })
			if got := after("under a guard", func() error { return write(db, ctx) }); !slices.Equal(got, expected) {
				t.Errorf("%s: there is %q, want %q", name, got, expected)
			}
			if locks, unlocks := j.count("lock k"), j.count("unlock k"); locks != unlocks || locks == 0 {
				t.Errorf("%s: locked %d times, and unlocked %d times", name, locks, unlocks)
			}
			got := after("in a transaction", func() error {
				return gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return write(tx, tx.Statement.Context) })
			})
			if !slices.Equal(got, expected) || j.count("lock k") != 1 {
				t.Errorf("%s in a transaction: there is %q, want %q; %d locks", name, got, expected, j.count("lock k"))
			}
		}
	})
}

// TestAssociation_InTransaction does under a guard what GORM does without one, under one lock in
// one transaction.
func TestAssociation_InTransaction(t *testing.T) {
	t.Parallel()
	shopped(t, func(t *testing.T, db *gorm.DB, j *journal, name string, write associationWrite) {
		shop := openShop(t, db, name)
		before := inShop(t, db)
		plain := db.Transaction
		if !write.ofMap {
			plain = func(fn func(*gorm.DB) error, _ ...*sql.TxOptions) error { return fn(db) }
		}
		failed := plain(func(tx *gorm.DB) error { return write.call(tx.Model(shop).Association(name)) })
		expected, end := inShop(t, db), "COMMIT"
		if failed != nil { // GORM cannot delete an owner in each of these ways, and leaves its first statement
			expected, end = before, "ROLLBACK"
		}
		shop = openShop(t, db, name)
		j.clear()
		err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			return write.call(tx.Model(shop).Association(name))
		})
		if (err != nil) != (failed != nil) {
			t.Errorf("under a guard %v, and without one %v", err, failed)
		}
		for _, event := range []string{"lock k", "BEGIN", end, "unlock k"} {
			if n := j.count(event); n != 1 {
				t.Errorf("%s happened %d times", event, n)
			}
		}
		if got := inShop(t, db); !slices.Equal(got, expected) {
			t.Errorf("there is %q, want %q", got, expected)
		}
	})
}

// TestAssociation_Map works without a guard and without a transaction, as without the plugin. In a
// transaction a guard comes too late, but not silently.
func TestAssociation_Map(t *testing.T) {
	t.Parallel()
	shopped(t, func(t *testing.T, db *gorm.DB, j *journal, name string, write associationWrite) {
		if !write.ofMap {
			return
		}
		shop := openShop(t, db, name)
		before := inShop(t, db)
		ok(t, "outside", write.call(db.Model(shop).Association(name)))
		if slices.Equal(before, inShop(t, db)) {
			t.Errorf("there is still %q", before)
		}
		err := db.Transaction(func(tx *gorm.DB) error {
			return write.call(tx.Scopes(gormlock.Guard("k")).Model(openShop(t, db, name)).Association(name))
		})
		want(t, "guard in a transaction", err, gormlock.ErrGuardTooLate)
	})
}

// TestFirstOrCreate_Guard: it is a read and a write, which need one lock.
func TestFirstOrCreate_Guard(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		one := func(db *gorm.DB) error {
			return db.Assign(Stock{Name: "new"}).FirstOrCreate(&Stock{}, Stock{SKU: 42}).Error
		}
		want(t, "Guard", one(db.Scopes(gormlock.Guard("k"))), gormlock.ErrNoTransaction)
		wantStocks(t, db, 0)
		wantIdle(t, db, l, "k")
		for range 2 {
			ok(t, "Transaction", gormlock.Transaction(db, "k", one))
			ok(t, "Guard", db.Scopes(gormlock.Guard("k")).Transaction(one))
			ok(t, "WithGuard", one(db.WithContext(gormlock.WithGuard(t.Context(), "k"))))
		}
		wantStocks(t, db, 1)
		wantIdle(t, db, l, "k")
	})
}

// TestCreateInBatches_Guard: without a transaction each batch has its own lock.
func TestCreateInBatches_Guard(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		j := &journal{}
		ok(t, "Use", db.Use(gormlock.New(locker(t, j.backend(), core.WithPrefix("")))))
		writes := map[string]func(db *gorm.DB, rows []Stock) error{
			"CreateInBatches": func(db *gorm.DB, rows []Stock) error {
				return db.Scopes(gormlock.Guard("k")).CreateInBatches(&rows, 2).Error
			},
			"WithGuard": func(db *gorm.DB, rows []Stock) error {
				return db.WithContext(gormlock.WithGuard(t.Context(), "k")).CreateInBatches(rows, 2).Error
			},
			"Create": func(db *gorm.DB, rows []Stock) error {
				return db.Session(&gorm.Session{CreateBatchSize: 2}).Scopes(gormlock.Guard("k")).Create(&rows).Error
			},
			"generics API": func(db *gorm.DB, rows []Stock) error {
				return gorm.G[Stock](db).CreateInBatches(gormlock.WithGuard(t.Context(), "k"), &rows, 2)
			},
		}
		skip := db.Session(&gorm.Session{SkipDefaultTransaction: true})
		for name, write := range writes {
			ok(t, name, write(skip, []Stock{{SKU: 1}, {SKU: 2}, {SKU: 3}}))
			wantStocks(t, db, 3)
			j.want(t, name, "lock k", "unlock k", "lock k", "unlock k")
			ok(t, "Delete", db.Exec("DELETE FROM stocks").Error)
			for form, run := range map[string]func() error{
				"one batch":           func() error { return write(db, []Stock{{SKU: 1}, {SKU: 2}}) },
				"default transaction": func() error { return write(db, []Stock{{SKU: 1}, {SKU: 2}, {SKU: 3}}) },
				"transaction": func() error {
					return gormlock.Transaction(skip, "k", func(tx *gorm.DB) error {
						rows := []Stock{{SKU: 1}, {SKU: 2}, {SKU: 3}}
						return tx.CreateInBatches(&rows, 2).Error
					})
				},
			} {
				ok(t, name+", "+form, run())
				j.want(t, name+", "+form, "lock k", "unlock k")
				ok(t, "Delete", db.Exec("DELETE FROM stocks").Error)
			}
		}
		ok(t, "Create of less than a batch", writes["Create"](skip, []Stock{{SKU: 1}}))
		ok(t, "CreateInBatches of one row", skip.Scopes(gormlock.Guard("k")).CreateInBatches(&Stock{SKU: 2}, 2).Error)
	})
}

func (j *journal) clear() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = nil
}

func (j *journal) count(event string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.events {
		if e == event {
			n++
		}
	}
	return n
}

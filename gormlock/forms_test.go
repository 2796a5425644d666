package gormlock_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/gormlock"
)

// A chapter holds the forms of one part of GORM's documentation, with their tables.
type chapter struct {
	models   []any
	setup    func(db *gorm.DB) error // runs once for each gorm.DB, before the migration
	fixture  func() []any            // what is in the tables before each form
	forms    []form
	noScopes bool // the forms drop scopes, and Guard before a block does not reach them
}

// A form runs statements. It notes what it reads and how many rows it writes.
type form struct {
	name    string
	refused refusal
	run     func(db *gorm.DB, n *notes) error
}

// A refusal tells which guards refuse a form outside a transaction with ErrNoTransaction.
type refusal int

const (
	never   refusal = iota
	byGuard         // it reads, and Guard cannot guard a read
	byBoth          // WithGuard refuses it too: raw SQL that reads
)

type notes struct{ lines []string }

func (n *notes) note(values ...any) {
	for _, v := range values {
		line, err := json.Marshal(v)
		if err != nil {
			line = []byte(err.Error())
		}
		n.lines = append(n.lines, string(line))
	}
}

// rows notes how many rows a statement affected.
func (n *notes) rows(tx *gorm.DB) error { n.note(tx.RowsAffected); return tx.Error }

// read notes what a statement read into dest, which a statement before it has filled.
func (n *notes) read(tx *gorm.DB, dest any) error { n.note(tx.RowsAffected, dest); return tx.Error }

// A way runs a form with the plugin. The forms of a block are compared with those of GORM's block.
type way struct {
	name    string
	block   bool
	locks   bool    // whatever the form writes, it writes under the lock
	refused refusal // the way refuses the forms with this refusal or a greater one; never: none
	run     func(db *gorm.DB, fn func(db *gorm.DB) error) error
}

func waysOfForms() []way {
	guard := gormlock.Guard("k")
	context := func(db *gorm.DB) *gorm.DB {
		return db.WithContext(gormlock.WithGuard(db.Statement.Context, "k"))
	}
	return []way{
		{"no guard", false, false, never, func(db *gorm.DB, fn func(*gorm.DB) error) error { return fn(db) }},
		{"no guard, block", true, false, never, func(db *gorm.DB, fn func(*gorm.DB) error) error {
			return db.Transaction(fn)
		}},
		{"Guard", false, false, byGuard, func(db *gorm.DB, fn func(*gorm.DB) error) error {
			return fn(db.Scopes(guard).Session(&gorm.Session{}))
		}},
		{"Guard, block", true, true, never, func(db *gorm.DB, fn func(*gorm.DB) error) error {
			return db.Scopes(guard).Transaction(fn)
		}},
		{"WithGuard", false, true, byBoth, func(db *gorm.DB, fn func(*gorm.DB) error) error {
			return fn(context(db))
		}},
		{"WithGuard, by hand", true, true, never, func(db *gorm.DB, fn func(*gorm.DB) error) error {
			tx := context(db).Begin()
			if err := errors.Join(tx.Error, fn(tx)); err != nil {
				return errors.Join(err, rollback(tx))
			}
			return commit(tx)
		}},
		{"Transaction", true, true, never, func(db *gorm.DB, fn func(*gorm.DB) error) error {
			return gormlock.Transaction(db, "k", fn)
		}},
	}
}

// compareForms runs each form of a chapter without the plugin and in each way with it. What was
// read, what is in the tables and the error must be the same. By default MariaDB and PostgreSQL have
// one way without a block and one with it. The other ways add the same to a form on each database.
func compareForms(t *testing.T, c chapter) {
	t.Helper()
	t.Parallel()
	now := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	change := config(func(g *gorm.Config) {
		g.DisableForeignKeyConstraintWhenMigrating = true
		g.NowFunc = func() time.Time { return now }
	})
	each(t, func(t *testing.T, plain *gorm.DB) {
		j := &journal{}
		l := locker(t, j.backend())
		wrapped, err := gorm.Open(plain.Dialector, change, config(func(g *gorm.Config) {
			g.PrepareStmt, g.Logger = plain.PrepareStmt, plain.Logger
		}))
		ok(t, "Open", err)
		ok(t, "Use", wrapped.Use(gormlock.New(l)))
		if c.setup != nil {
			ok(t, "setup", errors.Join(c.setup(plain), c.setup(wrapped)))
		}
		s := newStage(t, plain, c)
		ways, without := waysOfForms(), waysOfForms()[:2]
		switch {
		case !long && plain.Name() != "sqlite":
			ways = slices.DeleteFunc(ways, func(w way) bool { return w.name != "WithGuard" && w.name != "Transaction" })
		case plain.PrepareStmt: // what is around a transaction is the same for each of its ways
			ways = slices.DeleteFunc(ways, func(w way) bool {
				return w.name == "no guard, block" || w.name == "Guard" || w.name == "WithGuard, by hand"
			})
		}
		for _, f := range c.forms {
			want := map[bool]outcomeOfForm{
				false: s.run(t, plain, f, without[0]),
				true:  s.run(t, plain, f, without[1]),
			}
			for _, w := range ways {
				j.events = nil
				got := s.run(t, wrapped, f, w)
				what := w.name + ": " + f.name
				if w.refused != never && f.refused >= w.refused {
					if !errors.Is(got.err, gormlock.ErrNoTransaction) {
						t.Errorf("%s: got %v, want ErrNoTransaction", what, got.err)
					}
					continue
				}
				if got.String() != want[w.block].String() {
					t.Errorf("%s:\ngot  %s\nwant %s", what, got, want[w.block])
				}
				if got.changed && w.locks && !(c.noScopes && w.name == "Guard, block") && len(j.events) == 0 {
					t.Errorf("%s: nothing was locked", what)
				}
				wantIdle(t, wrapped, l, "k")
			}
		}
	}, change)
}

type outcomeOfForm struct {
	notes   []string
	err     error
	tables  map[string]string
	changed bool // the form changed the tables
}

func (o outcomeOfForm) String() string {
	return fmt.Sprintf("%v\nnotes: %v\ntables: %v", o.err, o.notes, o.tables)
}

// A stage holds the tables of a chapter, and knows what is in them before each form.
type stage struct {
	db     *gorm.DB
	tables []string
	rows   map[string][]map[string]any
	before map[string]string
}

func newStage(t *testing.T, db *gorm.DB, c chapter) *stage {
	t.Helper()
	ok(t, "AutoMigrate", db.AutoMigrate(c.models...))
	tables, err := db.Migrator().GetTables()
	ok(t, "GetTables", err)
	s := &stage{db: db, rows: map[string][]map[string]any{}, before: map[string]string{}}
	for _, rows := range c.fixture() {
		ok(t, "Create", db.Create(rows).Error)
	}
	for _, table := range tables {
		if table == "sqlite_sequence" || table == "stocks" || table == "items" {
			continue
		}
		s.tables = append(s.tables, table)
		s.rows[table] = s.read(t, table)
		s.before[table] = fmt.Sprint(s.rows[table])
	}
	return s
}

func (s *stage) read(t *testing.T, table string) (rows []map[string]any) {
	t.Helper()
	ok(t, "Find", s.db.Table(table).Order("1, 2").Find(&rows).Error)
	for _, row := range rows {
		delete(row, "auto_id") // the databases number anew after each rollback
	}
	return rows
}

// run returns the outcome of a form, and puts the tables back as they were.
func (s *stage) run(t *testing.T, db *gorm.DB, f form, w way) outcomeOfForm {
	t.Helper()
	n := &notes{}
	err := w.run(db, func(db *gorm.DB) error { return f.run(db, n) })
	o := outcomeOfForm{notes: n.lines, err: err, tables: map[string]string{}}
	bare := s.db.Session(&gorm.Session{SkipDefaultTransaction: true})
	ok(t, "put back", bare.Connection(func(db *gorm.DB) error {
		for _, table := range s.tables {
			now := fmt.Sprint(s.read(t, table))
			if now == s.before[table] {
				continue
			}
			o.changed, o.tables[table] = true, now
			err := db.Exec("DELETE FROM ?", clause.Table{Name: table}).Error
			if rows := copiesOf(s.rows[table]); len(rows) > 0 {
				err = errors.Join(err, db.Table(table).Create(rows).Error)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
	return o
}

func copiesOf(rows []map[string]any) (copies []map[string]any) {
	for _, row := range rows {
		copies = append(copies, maps.Clone(row))
	}
	return copies
}

// copyOf returns a pointer to a copy of what p points to: GORM writes into its models.
func copyOf(p any) any {
	c := reflect.New(reflect.TypeOf(p).Elem())
	c.Elem().Set(reflect.ValueOf(p).Elem())
	return c.Interface()
}

// manyOf returns a pointer to a slice of what p points to.
func manyOf(p any) any {
	return reflect.New(reflect.SliceOf(reflect.TypeOf(p).Elem())).Interface()
}

package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func sealed(t testing.TB, l *core.Locker, key string) bool {
	t.Helper()
	st, err := l.Inspect(context.Background(), key)
	ok(t, "Inspect", err)
	return st.Status == core.Sealed
}

// sellers are the ways to take n of a stock under the guard "k", and to seal it.
var sellers = map[string]func(db *gorm.DB, sku int, n int64) error{
	"single": func(db *gorm.DB, sku int, n int64) error {
		return decrement(db.Model(&Stock{}).Scopes(gormlock.Guard("k")).Where("sku = ?", sku), "left", n, gormlock.SealWhenOut(time.Minute))
	},
	"block": func(db *gorm.DB, sku int, n int64) error {
		return db.Scopes(gormlock.Guard("k")).Transaction(func(tx *gorm.DB) error { return sell(tx, sku, n) })
	},
	"Transaction": func(db *gorm.DB, sku int, n int64) error {
		return gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return sell(tx, sku, n) })
	},
	"Grouped": func(db *gorm.DB, sku int, n int64) error {
		return gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return sell(tx, sku, n) }, gormlock.Grouped(8))
	},
}

// sellsOut asks for what is sold out until "k" is sealed. SealWhenOut has a second for the look and the
// seal, which a busy machine may not give it at once.
func sellsOut(t *testing.T, what string, l *core.Locker, sell func() error) {
	t.Helper()
	eventually(t, what+": the key is sealed", func() bool {
		began := time.Now()
		want(t, what, sell(), gormlock.ErrInsufficient)
		eventually(t, what+": the lock has ended", func() bool { return !held(t, l, "k") })
		took, done := time.Since(began), sealed(t, l, "k")
		if !done && took < time.Second {
			t.Fatalf("%s: it is not sealed after %v, and there was time", what, took)
		}
		return done
	})
}

func sell(tx *gorm.DB, sku int, n int64) error {
	return decrement(tx.Model(&Stock{}).Where("sku = ?", sku), "left", n, gormlock.SealWhenOut(time.Minute))
}

// asked counts what a backend is asked, and lets a test act before a seal.
type asked struct {
	core.Sealer
	acquires, seals atomic.Int64
	beforeSeal      func()
	afterUnseal     func()
	hangs           bool // the answers to seals do not come
}

// Open implements core.Opener.
func (b *asked) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b *asked) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	b.acquires.Add(1)
	return b.Sealer.Acquire(ctx, r)
}

func (b *asked) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	b.seals.Add(1)
	if b.beforeSeal != nil {
		b.beforeSeal()
	}
	err := b.Sealer.Seal(ctx, g, value, retention)
	if b.hangs {
		<-ctx.Done()
		err = &core.UnavailableError{Key: g.Key, Nodes: []error{ctx.Err()}}
	}
	return err
}

func (b *asked) Unseal(ctx context.Context, key string) error {
	err := b.Sealer.Unseal(ctx, key)
	if b.afterUnseal != nil {
		b.afterUnseal()
	}
	return err
}

func (j *journal) length() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.events)
}

// TestSealWhenOut_TurnsLaterBuyersAway: after the stock is sold out, an attempt is one round trip
// and no SQL, in this process and in others. After a restock, attempts buy again.
func TestSealWhenOut_TurnsLaterBuyersAway(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		sql := recordPool(t, db)
		b := &asked{Sealer: backendtest.Memory()}
		l := locker(t, b)
		ok(t, "Use", db.Use(gormlock.New(l)))
		elsewhere := locker(t, b)
		put(t, db, 42, 0)
		const look = 3 // statements: BEGIN, SELECT, ROLLBACK
		var beforeSeal atomic.Int64
		b.beforeSeal = func() { beforeSeal.Store(int64(sql.length())) }
		for name, sell := range sellers {
			ok(t, "Update", db.Model(&Stock{}).Where("sku = ?", 42).Update("left", 2).Error)
			ok(t, "Unseal", l.Unseal(t.Context(), "k"))
			for range 2 {
				ok(t, name, sell(db, 42, 1))
				eventually(t, "the key is free", func() bool { return !held(t, l, "k") })
			}
			for looked := false; !looked; {
				sellsOut(t, name+": the first that gets nothing", l, func() error { return sell(db, 42, 1) })
				eventually(t, name+": who sealed it has looked once more", func() bool {
					looked = sql.length() >= int(beforeSeal.Load())+look && inUse(t, db) == 0
					return looked || !sealed(t, l, "k") // a busy machine may not give it the time at once
				})
			}
			statements, acquires := sql.length(), b.acquires.Load()
			for range 3 {
				err := sell(db, 42, 1)
				want(t, name, err, gormlock.ErrInsufficient)
				want(t, name, err, core.ErrSealed)
				if strings.Count(err.Error(), "gormlock:") != 1 || !strings.Contains(err.Error(), "not enough left") {
					t.Errorf("%s: it does not read well: %v", name, err)
				}
			}
			if n, asked := sql.length()-statements, b.acquires.Load()-acquires; n != 0 || asked != 3 {
				t.Errorf("%s: three attempts took %d statements and %d round trips", name, n, asked)
			}
			_, err := elsewhere.TryAcquire(t.Context(), "k")
			want(t, "elsewhere", err, core.ErrSealed)
			wantLeft(t, db, 42, 0)
		}
	})
}

// TestSealWhenOut_SealsNothingElse is what does not seal: there is something left, or nobody can know.
func TestSealWhenOut_SealsNothingElse(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	var w warnings
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 3)
		put(t, db, 43, 0)
		option := gormlock.SealWhenOut(time.Minute)
		for name, sell := range sellers {
			want(t, name+": 5 of 3", sell(db, 42, 5), gormlock.ErrInsufficient)
			want(t, name+": a missing row", sell(db, 99, 1), gormlock.ErrInsufficient)
		}
		takesAll := func(tx *gorm.DB) error {
			return errors.Join(sell(tx, 42, 3), expect(sell(tx, 42, 1), gormlock.ErrInsufficient), boom)
		}
		want(t, "rolled back", gormlock.Transaction(db, "k", takesAll), boom)
		want(t, "rolled back in a group", gormlock.Transaction(db, "k", takesAll, gormlock.Grouped(8)), boom)
		both := db.Model(&Stock{}).Where("sku IN ?", []int{42, 43})
		want(t, "one of two rows", decrement(both.Scopes(gormlock.Guard("k")), "left", 5, option), gormlock.ErrInsufficient)
		ok(t, "the last that is there", gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return sell(tx, 42, 3) }))
		ok(t, "Do", l.Do(t.Context(), "k", func(ctx context.Context) error {
			return expect(sellers["single"](db.WithContext(ctx), 42, 1), gormlock.ErrInsufficient)
		}))
		ended, end := context.WithCancel(t.Context())
		want(t, "a context that ended", gormlock.Transaction(db.WithContext(ended), "k", func(tx *gorm.DB) error {
			want(t, "sell", sell(tx, 42, 1), gormlock.ErrInsufficient)
			end()
			return nil
		}), context.Canceled)
		eventually(t, "the key is free", func() bool { return !held(t, l, "k") })
		if sealed(t, l, "k") {
			t.Fatal("the key is sealed")
		}
		if n := w.n.Load(); n != 0 {
			t.Errorf("%d warnings", n)
		}
		ok(t, "Update", db.Model(&Stock{}).Where("sku = ?", 43).Update("left", nil).Error)
		eventually(t, "NULL is said", func() bool { // a busy machine may not give the look its time at once
			w.n.Store(0)
			want(t, "NULL", sellers["single"](db, 43, 1), gormlock.ErrInsufficient)
			return w.n.Load() == 1
		})
		if w.n.Store(0); sealed(t, l, "k") {
			t.Error("NULL: the key is sealed")
		}
		ok(t, "Update", db.Model(&Stock{}).Where("sku = ?", 43).Update("left", 0).Error)
		// And these cannot seal, which is said before anything is sent.
		for name, err := range map[string]error{
			"no guard":      decrement(db.Model(&Stock{}).Where("sku = 42"), "left", 1, option),
			"block":         db.Transaction(func(tx *gorm.DB) error { return sell(tx, 42, 1) }),
			"two keys":      decrement(db.Model(&Stock{}).Scopes(gormlock.Guard("k"), gormlock.Guard("j")).Where("sku = 42"), "left", 1, option),
			"a short time":  decrement(db.Model(&Stock{}).Scopes(gormlock.Guard("k")).Where("sku = 42"), "left", 1, gormlock.SealWhenOut(time.Millisecond)),
			"a long time":   decrement(db.Model(&Stock{}).Scopes(gormlock.Guard("k")).Where("sku = 42"), "left", 1, gormlock.SealWhenOut(1<<63-1)),
			"DryRun":        decrement(db.Session(&gorm.Session{DryRun: true}).Model(&Stock{}).Where("sku = 42"), "left", 1, nil, option),
			"no such table": decrement(db.Table("nowhere").Scopes(gormlock.Guard("k")).Where("sku = 42"), "left", 1, option),
		} {
			if err == nil || errors.Is(err, gormlock.ErrInsufficient) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if sealed(t, l, "k") {
			t.Error("the key is sealed")
		}
		sellsOut(t, "one key twice", l, func() error {
			return decrement(db.Model(&Stock{}).Scopes(gormlock.Guard("k"), gormlock.Guard("k")).Where("sku = 43"), "left", 1, option)
		})
	}, config(func(c *gorm.Config) { c.Logger = &w }))
}

// warnings counts what is logged, except that a busy machine had no time for a look.
type warnings struct {
	logger.Interface
	n atomic.Int64
}

func (w *warnings) LogMode(logger.LogLevel) logger.Interface                        { return w }
func (w *warnings) Info(context.Context, string, ...any)                            {}
func (w *warnings) Error(context.Context, string, ...any)                           {}
func (w *warnings) Trace(context.Context, time.Time, func() (string, int64), error) {}

func (w *warnings) Warn(_ context.Context, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	// SQLite says that it was interrupted.
	if !strings.Contains(text, context.DeadlineExceeded.Error()) && !strings.Contains(text, "interrupted") {
		w.n.Add(1)
	}
}

func TestSealWhenOut_NeedsThePlugin(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		want(t, "Decrement", sell(db, 42, 1), gormlock.ErrNotRegistered)
		wantLeft(t, db, 42, 10)
	})
}

// TestSealWhenOut_NotUnderALostLock: a lock that was lost seals nothing, noticed or not.
func TestSealWhenOut_NotUnderALostLock(t *testing.T) {
	t.Parallel()
	for name, sell := range sellers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loser(t, func(t *testing.T, db *gorm.DB, l *core.Locker, lose func()) {
				put(t, db, 43, 0)
				var once atomic.Bool
				ok(t, "Register", db.Callback().Update().Before("gorm:after_update").Register("lose", func(*gorm.DB) {
					if once.CompareAndSwap(false, true) {
						lose()
					}
				}))
				if err := sell(db, 43, 1); !errors.Is(err, gormlock.ErrInsufficient) && !errors.Is(err, core.ErrLost) {
					t.Errorf("got %v", err)
				}
				eventually(t, "no connection is in use", func() bool { return inUse(t, db) == 0 })
				if !once.Load() || sealed(t, l, "k") {
					t.Errorf("lost %v, sealed %v", once.Load(), sealed(t, l, "k"))
				}
			})
		})
	}
}

// Retired has rows that are deleted softly.
type Retired struct {
	ID        uint
	SKU       int
	Left      int64
	DeletedAt gorm.DeletedAt
}

// TestSealWhenOut_LooksAtTheSameRow: however the row was selected.
func TestSealWhenOut_LooksAtTheSameRow(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 41, 10) // another one, which is not out
		put(t, db, 42, 0)
		var s Stock
		ok(t, "Take", db.Take(&s, "sku = 42").Error)
		ok(t, "AutoMigrate", db.AutoMigrate(&Retired{}))
		gone := gorm.DeletedAt{Time: time.Now(), Valid: true}
		ok(t, "Create", db.Create(&[]Retired{{SKU: 42}, {SKU: 42, Left: 5, DeletedAt: gone}, {SKU: 43, DeletedAt: gone}}).Error)
		for name, row := range map[string]func(db *gorm.DB) *gorm.DB{
			"table":       func(db *gorm.DB) *gorm.DB { return db.Table("stocks").Where("sku = ?", 42) },
			"primary key": func(db *gorm.DB) *gorm.DB { return db.Model(&Stock{ID: s.ID}) },
			"struct":      func(db *gorm.DB) *gorm.DB { return db.Model(&Stock{}).Where(&Stock{SKU: 42}) },
			"scope": func(db *gorm.DB) *gorm.DB {
				return db.Model(&Stock{}).Scopes(func(db *gorm.DB) *gorm.DB { return db.Where("sku = 42") })
			},
			"not deleted": func(db *gorm.DB) *gorm.DB { return db.Model(&Retired{}).Where("sku = 42") },
			"Unscoped":    func(db *gorm.DB) *gorm.DB { return db.Unscoped().Model(&Retired{}).Where("sku = 43") },
			"Or":          func(db *gorm.DB) *gorm.DB { return db.Model(&Stock{}).Where("sku = ?", 42).Or("sku = ?", 99) },
		} {
			sellsOut(t, name, l, func() error {
				return decrement(row(db).Scopes(gormlock.Guard("k")), "left", 1, gormlock.SealWhenOut(time.Minute))
			})
			ok(t, "Unseal", l.Unseal(t.Context(), "k"))
		}
	})
}

// TestSealWhenOut_UncommittedByOthers: what another transaction has written and not committed seals
// nothing, even if sessions read such values. On SQLite a writer keeps out all others.
func TestSealWhenOut_UncommittedByOthers(t *testing.T) {
	t.Parallel()
	set := map[string]string{
		"mysql":    "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
		"postgres": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if set[db.Name()] == "" {
			return
		}
		put(t, db, 42, 3)
		conns := pool(t, db)
		conns.SetMaxOpenConns(2)
		var both [2]*sql.Conn
		for i := range both {
			var err error
			both[i], err = conns.Conn(t.Context())
			ok(t, "Conn", err)
			_, err = both[i].ExecContext(t.Context(), set[db.Name()])
			ok(t, "SET", err)
		}
		ok(t, "Close", errors.Join(both[0].Close(), both[1].Close()))
		var other atomic.Pointer[sql.Tx]
		t.Cleanup(func() {
			if writer := other.Load(); writer != nil {
				_ = writer.Rollback()
			}
		})
		var begun atomic.Int64
		gormlock.OnBegin(db, func() {
			if begun.Add(1) != 2 { // the sale, the look, and perhaps another look
				return
			}
			writer, err := conns.Begin()
			ok(t, "Begin", err)
			_, err = writer.Exec("UPDATE stocks SET " + db.Statement.Quote("left") + " = 0")
			ok(t, "Exec", err)
			other.Store(writer)
		})
		for name, sell := range sellers {
			eventually(t, name+": it has looked", func() bool { // a busy machine may not give it the time at once
				begun.Store(0)
				want(t, name, sell(db, 42, 5), gormlock.ErrInsufficient)
				eventually(t, name+": the lock has ended", func() bool { return !held(t, l, "k") })
				return other.Load() != nil
			})
			eventually(t, name+": the writer is alone", func() bool { return inUse(t, db) == 1 })
			if sealed(t, l, "k") {
				t.Fatalf("%s: the key is sealed, with 3 left", name)
			}
			ok(t, "Rollback", other.Swap(nil).Rollback())
		}
	})
}

// TestSealWhenOut_LookPanics: a callback that panics when the look is prepared is logged: the key is free, and not sealed.
func TestSealWhenOut_LookPanics(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 0)
		var looks atomic.Int64
		ok(t, "Register", db.Callback().Query().Before("gorm:query").Register("panics", func(*gorm.DB) {
			looks.Add(1)
			panic("a callback's own")
		}))
		for name, sell := range sellers {
			looks.Store(0)
			want(t, name, sell(db, 42, 1), gormlock.ErrInsufficient)
			eventually(t, name+": it has looked, and the key is free", func() bool {
				return looks.Load() == 1 && inUse(t, db) == 0 && !held(t, l, "k") && !sealed(t, l, "k")
			})
		}
	})
}

// TestSealWhenOut_Restocked: who restocks between the look and the seal is not shut out.
func TestSealWhenOut_Restocked(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		b := &asked{Sealer: backendtest.Memory()}
		l := locker(t, b)
		ok(t, "Use", db.Use(gormlock.New(l)))
		put(t, db, 42, 0)
		b.beforeSeal = func() {
			ok(t, "Update", db.Session(&gorm.Session{NewDB: true}).Model(&Stock{}).Where("sku = ?", 42).Update("left", 5).Error)
			ok(t, "Unseal", l.Unseal(context.Background(), "k"))
		}
		for name, sell := range sellers {
			seals := b.seals.Load()
			eventually(t, name+": it was sealed", func() bool { // a busy machine may not give it the time at once
				want(t, name, sell(db, 42, 1), gormlock.ErrInsufficient)
				eventually(t, name+": the lock has ended", func() bool { return !held(t, l, "k") })
				return b.seals.Load() > seals
			})
			eventually(t, name+": it was taken back", func() bool { return !sealed(t, l, "k") })
			ok(t, name, sell(db, 42, 5))
			eventually(t, "the key is free", func() bool { return !held(t, l, "k") })
		}
	})
}

// TestSealWhenOut_SealOfUnknownOutcome: nor when the answer to the seal does not come, and its time is over.
func TestSealWhenOut_SealOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		b := &asked{Sealer: backendtest.Memory(), hangs: true}
		l := locker(t, b)
		ok(t, "Use", db.Use(gormlock.New(l)))
		put(t, db, 42, 0)
		b.beforeSeal = func() {
			ok(t, "Update", db.Session(&gorm.Session{NewDB: true}).Model(&Stock{}).Where("sku = ?", 42).Update("left", 5).Error)
			ok(t, "Unseal", l.Unseal(context.Background(), "k"))
		}
		eventually(t, "it was sealed", func() bool { // a busy machine may not give it the time at once
			want(t, "single", sellers["single"](db, 42, 1), gormlock.ErrInsufficient)
			return b.seals.Load() > 0
		})
		eventually(t, "it was taken back", func() bool { return !held(t, l, "k") && !sealed(t, l, "k") })
		if n := b.seals.Load(); n != 1 {
			t.Errorf("%d seals", n)
		}
	})
}

// TestSealWhenOut_Remembered: a remembered seal costs no round trip, and an Unseal is noticed later, also the own one.
func TestSealWhenOut_Remembered(t *testing.T) {
	t.Parallel()
	const memory = 300 * time.Millisecond
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		b := &asked{Sealer: backendtest.Memory()}
		l, elsewhere := locker(t, b), locker(t, b)
		ok(t, "Use", db.Use(gormlock.New(l, gormlock.RememberSeals(memory))))
		put(t, db, 42, 0)
		sell := func() error { return sellers["single"](db, 42, 1) }
		sellsOut(t, "sell", l, sell)
		for try := 1; ; try++ { // until all of it happens in time
			before, start := b.acquires.Load(), time.Now()
			want(t, "sell", sell(), core.ErrSealed)
			asked := b.acquires.Load()
			for range 20 {
				for name, sell := range sellers {
					err := sell(db, 42, 1)
					want(t, name, err, gormlock.ErrInsufficient)
					want(t, name, err, core.ErrSealed)
				}
			}
			n := b.acquires.Load() - asked
			if inTime := asked > before && time.Since(start) < memory; inTime {
				if n != 0 {
					t.Errorf("%d round trips", n)
				}
				break
			}
			if try == 20 {
				t.Log("the machine is too busy")
				break
			}
		}
		ok(t, "Update", db.Model(&Stock{}).Where("sku = ?", 42).Update("left", 2).Error)
		ok(t, "Unseal", l.Unseal(t.Context(), "k"))
		eventually(t, "the Unseal is noticed", func() bool { return sell() == nil })
		ok(t, "sell", sell())
		sellsOut(t, "sell", l, sell)
		want(t, "sell", sell(), core.ErrSealed)
		ok(t, "Update", db.Model(&Stock{}).Where("sku = ?", 42).Update("left", 2).Error)
		ok(t, "Unseal", elsewhere.Unseal(t.Context(), "k"))
		eventually(t, "the Unseal of another Locker is noticed", func() bool { return sell() == nil })
	})
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Use(gormlock.New(nil, gormlock.RememberSeals(-1))) == nil {
			t.Error("a negative memory was taken")
		}
	})
}

// TestSealWhenOut_NeverOversells: many buyers of few units, in all ways at once, on a real Redis; then it is sealed.
func TestSealWhenOut_NeverOversells(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Unseal", l.Unseal(t.Context(), "k"))
		ok(t, "Use", db.Use(gormlock.New(l, gormlock.WithWait(time.Minute))))
		pool(t, db).SetMaxOpenConns(8)
		put(t, db, 42, 10)
		var ways []func(*gorm.DB, int, int64) error
		for _, sell := range sellers {
			ways = append(ways, sell)
		}
		var next atomic.Int64
		sold := rush(t, 64, func() error {
			err := ways[next.Add(1)%int64(len(ways))](db, 42, 1)
			if errors.Is(err, gormlock.ErrInsufficient) {
				return errSoldOut
			}
			return err
		})
		if sold != 10 {
			t.Errorf("%d sold of 10", sold)
		}
		wantLeft(t, db, 42, 0)
		sellsOut(t, "a later buyer", l, func() error { return sellers["single"](db, 42, 1) })
	})
}

// The key of a Once names an effect, which would stay refused after a restock.
func TestSealWhenOut_NotTheKeyOfOnce(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Update", db.Model(&Stock{}).Where("sku = 42").Update("left", 0).Error)
		_, err := gormlock.Once(t.Context(), db, "buy:7", func(tx *gorm.DB) (int64, error) {
			stock := tx.Model(&Stock{}).Where("sku = ?", 42)
			return gormlock.Decrement(stock, "left", 1, gormlock.SealWhenOut(time.Minute))
		})
		if err == nil || errors.Is(err, gormlock.ErrInsufficient) || sealed(t, l, "buy:7") {
			t.Errorf("sealed is %v: %v", sealed(t, l, "buy:7"), err)
		}
	})
}

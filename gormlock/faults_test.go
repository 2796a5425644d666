package gormlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// steal frees a key under its holder, as a Redis that loses its data does.
func steal(t testing.TB, h *hooked, l *core.Locker, key string) {
	t.Helper()
	h.mu.Lock()
	owner := h.owners[len(h.owners)-1]
	h.mu.Unlock()
	name := "onelane:{" + key + "}"
	_, err := h.Sealer.Release(context.Background(), core.Grant{Key: name, Owner: owner})
	ok(t, "Release", err)
}

// loser is a database whose guards notice a loss soon. Their leases are long: none is lost on a
// machine that stands still.
func loser(t *testing.T, fn func(t *testing.T, db *gorm.DB, l *core.Locker, lose func())) {
	t.Helper()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		// A lease of a minute is renewed after 20 s: here after 1 s.
		h := &hooked{Sealer: backendtest.Memory(), sooner: 19 * time.Second}
		l := locker(t, h, core.WithTTL(time.Minute))
		ok(t, "Use", db.Use(gormlock.New(l)))
		fn(t, db, l, func() { steal(t, h, l, "k") })
	})
}

// TestLost_BeforeCommit is invariant I9: nothing is committed, noticed or not.
func TestLost_BeforeCommit(t *testing.T) {
	t.Parallel()
	loser(t, func(t *testing.T, db *gorm.DB, l *core.Locker, lose func()) {
		var lost context.Context
		err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 42))
			lose()
			lost = tx.Statement.Context
			<-lost.Done()
			want(t, "cause", context.Cause(lost), core.ErrLost)
			return nil
		})
		want(t, "Transaction", err, core.ErrLost)
		wantLeft(t, db, 42, 10)

		tx := db.Begin()
		ok(t, "take", take(tx.Scopes(gormlock.Guard("k")), 42))
		lose()
		eventually(t, "statements fail once the lock is lost", func() bool { return take(tx.Session(&gorm.Session{}), 42) != nil })
		want(t, "take", take(tx.Session(&gorm.Session{}), 42), core.ErrLost)
		want(t, "Row", tx.Raw("SELECT 1").Row().Scan(new(int)), core.ErrLost)
		want(t, "Commit", tx.Commit().Error, core.ErrLost)
		want(t, "Rollback keeps the error", tx.Rollback().Error, core.ErrLost)
		wantLeft(t, db, 42, 10)
		wantIdle(t, db, l, "k")
	})
}

// TestLost_InterruptsTheStatement: if its lock is lost, a Transaction or a single statement does not
// wait for the database.
func TestLost_InterruptsTheStatement(t *testing.T) {
	t.Parallel()
	long := map[string]string{"mysql": "SELECT SLEEP(30)", "postgres": "SELECT pg_sleep(30)"}
	loser(t, func(t *testing.T, db *gorm.DB, l *core.Locker, lose func()) {
		if long[db.Name()] == "" {
			return
		}
		start := time.Now()
		err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 42))
			lose()
			return tx.Exec(long[db.Name()]).Error
		})
		want(t, "Transaction", err, core.ErrLost)
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
		eventually(t, "no connection is in use", func() bool { return inUse(t, db) == 0 })
		wantLeft(t, db, 42, 10)

		ok(t, "Register", db.Callback().Raw().Before("gorm:raw").Register("lose", func(tx *gorm.DB) {
			if tx.Statement.SQL.String() == long[db.Name()] {
				lose()
			}
		}))
		start = time.Now()
		want(t, "single", db.Scopes(gormlock.Guard("k")).Exec(long[db.Name()]).Error, core.ErrLost)
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestBegin_WaitsNoLongerThanItIsWanted: all connections are in use, and the
// statement's context ends or the lock is lost.
func TestBegin_WaitsNoLongerThanItIsWanted(t *testing.T) {
	t.Parallel()
	loser(t, func(t *testing.T, db *gorm.DB, l *core.Locker, lose func()) {
		pool(t, db).SetMaxOpenConns(1)
		conn, err := pool(t, db).Conn(t.Context())
		ok(t, "Conn", err)
		defer time.AfterFunc(time.Minute, func() { _ = conn.Close() }).Stop()
		block := db.Scopes(gormlock.Guard("k"))
		for d := 500 * time.Millisecond; pool(t, db).Stats().WaitCount == 0 && d < time.Minute; d *= 4 { // or it ended before BEGIN waits
			want(t, "the statement's context", block.Transaction(func(tx *gorm.DB) error {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				return take(tx.WithContext(ctx), 42)
			}), context.DeadlineExceeded)
		}
		lost := func(tx *gorm.DB) error {
			before, lost := pool(t, db).Stats().WaitCount, make(chan error, 1)
			go func() {
				eventually(t, "BEGIN waits", func() bool { return pool(t, db).Stats().WaitCount > before })
				lose()
				lost <- nil
			}()
			return errors.Join(take(tx, 42), <-lost)
		}
		for name, err := range map[string]error{"block": block.Transaction(lost), "Transaction": gormlock.Transaction(db, "k", lost), "single": lost(block)} {
			want(t, name, err, core.ErrLost)
			if errors.Is(err, context.Canceled) {
				t.Errorf("%s: nobody has cancelled: %v", name, err)
			}
		}
		if pool(t, db).Stats().WaitCount != 4 || conn.PingContext(t.Context()) != nil {
			t.Errorf("%d waited for a connection, or it was given back", pool(t, db).Stats().WaitCount)
		}
		ok(t, "Close", conn.Close())
		wantLeft(t, db, 42, 10)
		wantIdle(t, db, l, "k")
	})
}

// TestBegin_NamesTheKey: a statement's own context is canceled while BEGIN waits for a connection.
func TestBegin_NamesTheKey(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		pool(t, db).SetMaxOpenConns(1)
		conn, err := pool(t, db).Conn(t.Context())
		ok(t, "Conn", err)
		defer conn.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var canceler sync.WaitGroup
		canceler.Go(func() {
			defer cancel()
			eventually(t, "BEGIN waits", func() bool { return pool(t, db).Stats().WaitCount > 0 })
		})
		err = gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return take(tx.WithContext(ctx), 42) })
		canceler.Wait()
		want(t, "Transaction", err, context.Canceled)
		ok(t, "Transaction", says(err, `guard "k"`, nil))
	})
}

// TestBegin_SaysWhyItWasGivenUp: the ends of a context's children come in any order, and the error
// is always the same.
func TestBegin_SaysWhyItWasGivenUp(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		pool(t, db).SetMaxOpenConns(1)
		conn, err := pool(t, db).Conn(t.Context())
		ok(t, "Conn", err)
		for range 100 {
			ctx, cancel := context.WithCancelCause(t.Context())
			before := pool(t, db).Stats().WaitCount
			go func() {
				eventually(t, "BEGIN waits", func() bool { return pool(t, db).Stats().WaitCount > before })
				cancel(errors.New("the caller's own cause"))
			}()
			err := db.WithContext(ctx).Scopes(gormlock.Guard("k")).Transaction(func(tx *gorm.DB) error { return take(tx, 42) })
			want(t, "cancelled", err, context.Canceled)
		}
		ok(t, "Close", conn.Close())
		wantIdle(t, db, l, "k")
	})
}

// TestLost_CheckedAtCommit: COMMIT asks the lock itself and does not rely on a notice.
func TestLost_CheckedAtCommit(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		var took error
		for ttl := 2 * time.Second; ttl < time.Minute; ttl *= 4 {
			l := locker(t, backendtest.Memory(), core.WithTTL(ttl), core.WithMaxHold(0))
			own := reopen(t, db)
			ok(t, "Use", own.Use(gormlock.New(l)))
			err := own.Scopes(gormlock.Guard("k")).Transaction(func(tx *gorm.DB) error {
				if took = take(tx, 42); took != nil {
					return took
				}
				time.Sleep(ttl) // the lease is over then, for certain
				return nil
			})
			want(t, "Transaction", err, core.ErrLost)
			if took == nil { // otherwise a machine that stood still lost the lock before
				break
			}
		}
		ok(t, "take", took)
		wantLeft(t, db, 42, 10)
	})
}

// TestContext_EndsInManualTransaction: the transaction is rolled back and then
// released although nobody calls Rollback.
func TestContext_EndsInManualTransaction(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		ctx, cancel := context.WithCancel(t.Context())
		tx := db.WithContext(ctx).Scopes(gormlock.Guard("k")).Begin()
		ok(t, "take", take(tx, 42))
		rows, err := tx.Model(&Stock{}).Rows()
		ok(t, "Rows", err)
		defer rows.Close()
		cancel()
		eventually(t, "the key is free", func() bool { return !held(t, l, "k") })
		wantIdle(t, db, l, "k")
		wantLeft(t, db, 42, 10)
		want(t, "take", take(tx.WithContext(t.Context()), 42), context.Canceled)
		want(t, "Commit", tx.Commit().Error, context.Canceled)
		want(t, "Rollback keeps the error", tx.Rollback().Error, context.Canceled)

		ctx, cancel = context.WithCancel(t.Context())
		tx = db.WithContext(gormlock.WithGuard(ctx, "k")).Begin()
		cancel()
		eventually(t, "the key is free", func() bool { return !held(t, l, "k") })
		want(t, "Commit", tx.Commit().Error, context.Canceled)

		ended, stop := context.WithCancel(t.Context())
		stop()
		want(t, "Begin", db.WithContext(ended).Begin().Error, context.Canceled)
		want(t, "statement", take(db.WithContext(ended).Scopes(gormlock.Guard("k")), 42), context.Canceled)
	})
}

// TestContext_OfStatementBoundsTheWait: a statement's own context may end sooner than
// the transaction's, and ends the wait.
func TestContext_OfStatementBoundsTheWait(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		var tx *gorm.DB
		err = endsInLine(t, func(ctx context.Context) error {
			tx = db.Begin()
			return take(tx.WithContext(ctx).Scopes(gormlock.Guard("k")), 42)
		})
		want(t, "statement", err, core.ErrTaken)
		want(t, "statement", err, context.DeadlineExceeded)
		ok(t, "Release", k.Release(t.Context()))
		want(t, "a guard that failed ends the transaction", tx.Commit().Error, core.ErrTaken)

		longer, end := context.WithCancel(t.Context())
		tx = db.Begin()
		ok(t, "statement", take(tx.WithContext(longer).Scopes(gormlock.Guard("k")), 42))
		end()
		ok(t, "the statement's context does not end the transaction", take(tx.Session(&gorm.Session{}), 42))
		ok(t, "Commit", tx.Commit().Error)
		wantLeft(t, db, 42, 8)
	})
}

// Acting is a stock with hooks.
type Acting struct {
	ID    uint
	SKU   int
	Name  string
	Left  int64
	Parts []Part `gorm:"foreignKey:StockID"`
}

type Part struct {
	ID      uint
	StockID uint
	Name    string
}

func (*Acting) TableName() string { return "stocks" }
func (*Part) TableName() string   { return "items" }

func (s *Acting) BeforeCreate(*gorm.DB) error { return act(s.Name, "BeforeCreate") }
func (s *Acting) AfterCreate(*gorm.DB) error  { return act(s.Name, "AfterCreate") }
func (s *Acting) BeforeUpdate(*gorm.DB) error { return act(s.Name, "BeforeUpdate") }
func (s *Acting) AfterUpdate(*gorm.DB) error  { return act(s.Name, "AfterUpdate") }
func (s *Acting) BeforeDelete(*gorm.DB) error { return act(s.Name, "BeforeDelete") }
func (s *Acting) AfterDelete(*gorm.DB) error  { return act(s.Name, "AfterDelete") }
func (p *Part) AfterCreate(*gorm.DB) error    { return act(p.Name, "Part.AfterCreate") }

var errHook = errors.New("the hook says no")

// act panics or fails in a hook if the name of the row asks for it.
func act(name, hook string) error {
	switch name {
	case "panic in " + hook:
		panic(name)
	case "fail in " + hook:
		return errHook
	}
	return nil
}

// TestHooks_PanicOrFail: a guarded statement whose hook panics or fails is rolled back, and
// its key is free.
func TestHooks_PanicOrFail(t *testing.T) {
	t.Parallel()
	guard := gormlock.Guard("k")
	statements := map[string]func(db *gorm.DB, name string) error{
		"BeforeCreate": func(db *gorm.DB, name string) error { return db.Create(&Acting{SKU: 1, Name: name}).Error },
		"AfterCreate":  func(db *gorm.DB, name string) error { return db.Create(&Acting{SKU: 1, Name: name}).Error },
		"Part.AfterCreate": func(db *gorm.DB, name string) error {
			return db.Create(&Acting{SKU: 1, Parts: []Part{{Name: name}}}).Error
		},
		"BeforeUpdate": func(db *gorm.DB, name string) error {
			return db.Model(&Acting{ID: 1, Name: name}).Update("left", 5).Error
		},
		"AfterUpdate": func(db *gorm.DB, name string) error {
			return db.Model(&Acting{ID: 1, Name: name}).Update("left", 5).Error
		},
		"BeforeDelete": func(db *gorm.DB, name string) error { return db.Delete(&Acting{ID: 1, Name: name}).Error },
		"AfterDelete":  func(db *gorm.DB, name string) error { return db.Delete(&Acting{ID: 1, Name: name}).Error },
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		for hook, statement := range statements {
			func() {
				defer func() {
					if recover() != "panic in "+hook {
						t.Errorf("%s: the panic did not arrive", hook)
					}
				}()
				_ = statement(db.Scopes(guard), "panic in "+hook)
			}()
			wantIdle(t, db, l, "k")
			want(t, hook, statement(db.Scopes(guard), "fail in "+hook), errHook)
			wantIdle(t, db, l, "k")
			want(t, hook+" in a block", db.Scopes(guard).Transaction(func(tx *gorm.DB) error {
				return statement(tx, "fail in "+hook)
			}), errHook)
			var n int64
			ok(t, "Count", db.Model(&Stock{}).Where(map[string]any{"left": 10}).Count(&n).Error)
			if n != 1 {
				t.Fatalf("%s: %d stocks as they were, want 1", hook, n)
			}
		}
	})
}

// TestBlock_Panics: the panic goes on, the transaction is rolled back and the key is free.
func TestBlock_Panics(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		blocks := map[string]func(fn func(tx *gorm.DB) error) error{
			"Guard":       func(fn func(tx *gorm.DB) error) error { return db.Scopes(gormlock.Guard("k")).Transaction(fn) },
			"Transaction": func(fn func(tx *gorm.DB) error) error { return gormlock.Transaction(db, "k", fn) },
		}
		for name, block := range blocks {
			func() {
				defer func() {
					if recover() != "boom" {
						t.Errorf("%s: the panic did not arrive", name)
					}
				}()
				_ = block(func(tx *gorm.DB) error { ok(t, "take", take(tx, 42)); panic("boom") })
			}()
			wantIdle(t, db, l, "k")
			wantLeft(t, db, 42, 10)
		}
	})
}

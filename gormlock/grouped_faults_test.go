package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestGrouped_CommitUnknown cuts the connection before and after COMMIT is done. All callers get
// ErrCommitUnknown, and the key stays locked.
func TestGrouped_CommitUnknown(t *testing.T) {
	t.Parallel()
	for _, cut := range []int32{cutBefore, cutAfter} {
		each(t, func(t *testing.T, db *gorm.DB) {
			proxied, p := behindProxy(t, db)
			if p == nil {
				return
			}
			h := &hooked{Sealer: backendtest.Memory(), sooner: 19900 * time.Millisecond} // it is renewed after 100 ms
			l := locker(t, h, core.WithTTL(time.Minute))
			ok(t, "Use", proxied.Use(gormlock.New(l)))
			put(t, db, 42, 10)
			boom := errors.New("boom")
			failing := &caller{fn: func(tx *gorm.DB) error { return errors.Join(take(tx, 42), boom) }}
			a, b := taker(42), &caller{fn: func(tx *gorm.DB) error { p.do.Store(cut); return take(tx, 42) }}
			inGroup(t, proxied, l, 0, a, failing, b)
			p.do.Store(pass)
			want(t, "first", a.err, gormlock.ErrCommitUnknown)
			want(t, "last", b.err, gormlock.ErrCommitUnknown)
			want(t, "the one that failed before", failing.err, boom)
			if errors.Is(failing.err, gormlock.ErrCommitUnknown) {
				t.Errorf("what was rolled back is not unknown: %v", failing.err)
			}
			eventually(t, "the group has ended", func() bool { return inUse(t, proxied) == 0 })
			if !held(t, l, "k") {
				t.Error("the key is free although the outcome is unknown")
			}
			eventually(t, "the key is not renewed, as nobody works under it", func() bool {
				renewals := h.extends.Load()
				time.Sleep(500 * time.Millisecond)
				return h.extends.Load() == renewals
			})
			wantLeft(t, db, 42, map[int32]int64{cutBefore: 10, cutAfter: 8}[cut])
		})
	}
}

// TestGrouped_CommitRejected: the server says no to COMMIT: nobody succeeds, and nothing is unknown.
func TestGrouped_CommitRejected(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() == "mysql" {
			return // which has no deferred constraints
		}
		if db.Name() == "sqlite" {
			pool(t, db).SetMaxOpenConns(1)
			ok(t, "PRAGMA", db.Exec("PRAGMA foreign_keys = 1").Error)
		}
		put(t, db, 42, 10)
		ok(t, "CREATE", db.Exec("CREATE TABLE parts (id int PRIMARY KEY, stock_id bigint REFERENCES stocks (id) DEFERRABLE INITIALLY DEFERRED)").Error)
		a, b := taker(42), &caller{fn: func(tx *gorm.DB) error { return tx.Exec("INSERT INTO parts VALUES (1, 999)").Error }}
		together(t, db, l, a, b)
		for _, err := range []error{a.err, b.err} {
			if err == nil || errors.Is(err, gormlock.ErrCommitUnknown) {
				t.Errorf("got %v, want the database's error", err)
			}
		}
		wantLeft(t, db, 42, 10)
	})
}

// TestGrouped_LostBeforeCommit is invariant I9 for all of a group, also when a function does not come back.
func TestGrouped_LostBeforeCommit(t *testing.T) {
	t.Parallel()
	loser(t, func(t *testing.T, db *gorm.DB, l *core.Locker, lose func()) {
		a, b := taker(42), &caller{fn: func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 42))
			lose()
			<-tx.Statement.Context.Done()
			want(t, "cause", context.Cause(tx.Statement.Context), core.ErrLost)
			want(t, "a statement", take(tx, 42), core.ErrLost)
			return nil
		}}
		together(t, db, l, a, b)
		want(t, "first", a.err, core.ErrLost)
		want(t, "last", b.err, core.ErrLost)
		wantLeft(t, db, 42, 10)

		back := make(chan struct{})
		a, b = taker(42), &caller{fn: func(tx *gorm.DB) error {
			lose()
			go func() {
				eventually(t, "the group ended without the one that hangs", func() bool { return inUse(t, db) == 0 && gormlock.Waiting(db) == 0 })
				close(back)
			}()
			<-back
			return take(tx.WithContext(context.Background()), 42)
		}}
		inTime := &caller{fn: a.fn}
		together(t, db, l, a, b, inTime)
		want(t, "first", a.err, core.ErrLost)
		want(t, "the one that hung", b.err, core.ErrLost)
		ok(t, "who came later is in another group", inTime.err)
		wantLeft(t, db, 42, 9)
	})
}

// TestGrouped_TakesTooLong: a function that does not come back holds up the others no longer than a group lasts.
func TestGrouped_TakesTooLong(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		long := map[string]string{"mysql": "SELECT SLEEP(2)", "postgres": "SELECT pg_sleep(2)"}
		a, b := taker(42), &caller{fn: func(tx *gorm.DB) error {
			if s := long[db.Name()]; s != "" {
				return tx.Exec(s).Error
			}
			<-tx.Statement.Context.Done()
			return nil
		}}
		start := time.Now()
		togetherWithin(t, db, l, time.Second, a, b)
		for _, err := range []error{a.err, b.err} {
			if errors.Is(err, gormlock.ErrCommitUnknown) || errors.Is(err, context.Canceled) && err == a.err || !strings.Contains(fmt.Sprint(err), "more than 1s") {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
		wantLeft(t, db, 42, 10)
		gormlock.SetGroupTimes(db, 0, 0)
		ok(t, "the next", gormlock.Transaction(db, "k", a.fn, gormlock.Grouped(2)))
	})
}

// TestGrouped_ContextEnds: in the line, in the function, and while others are at work.
func TestGrouped_ContextEnds(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		short, cancel := context.WithCancel(t.Context())
		defer cancel()
		var waits sync.WaitGroup
		waits.Go(func() {
			eventually(t, "the caller waits", func() bool { return gormlock.Waiting(db) == 1 })
			cancel()
		})
		fn := func(tx *gorm.DB) error { return take(tx, 42) }
		err = gormlock.Transaction(db.WithContext(short), "k", fn, gormlock.Grouped(8), gormlock.WithWait(time.Minute))
		want(t, "in the line", err, core.ErrTaken)
		want(t, "in the line", err, context.Canceled)
		waits.Wait()
		err = gormlock.Transaction(db, "k", fn, gormlock.Grouped(8), gormlock.WithWait(10*time.Millisecond))
		want(t, "WithWait", err, core.ErrTaken)
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WithWait: %v", err)
		}
		eventually(t, "nobody waits for the key any more", func() bool { return gormlock.Queues(db) == 0 })
		want(t, "ended before", gormlock.Transaction(db.WithContext(short), "k", fn, gormlock.Grouped(8)), context.Canceled)
		ok(t, "Release", k.Release(t.Context()))
		eventually(t, "nobody holds the key", func() bool { return !held(t, l, "k") })

		ctx, end := context.WithCancel(t.Context())
		inFunction := &caller{ctx: ctx, fn: func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 42))
			end()
			want(t, "a statement after", take(tx, 42), context.Canceled)
			return nil
		}}
		stopped, stop := context.WithCancel(t.Context())
		inStatement := &caller{ctx: stopped, fn: func(tx *gorm.DB) error {
			ended, end := context.WithCancel(context.Background())
			end()
			want(t, "a statement with a context of its own", take(tx.WithContext(ended), 42), context.Canceled)
			ok(t, "take", take(tx, 42))
			s, server := map[string]string{"mysql": "SELECT SLEEP(%v)", "postgres": "SELECT pg_sleep(%v)"}[db.Name()]
			for _, seconds := range []float64{0.2, 3, 20} {
				if !server || stopped.Err() != nil {
					break
				}
				over := make(chan struct{})
				var watch sync.WaitGroup
				watch.Go(func() {
					for {
						select {
						case <-over:
							return
						case <-time.After(time.Millisecond):
						}
						if sleeps(t, db) {
							stop()
							return
						}
					}
				})
				err := tx.Exec(fmt.Sprintf(s, seconds)).Error
				ok(t, "a statement while it ends, which would end the connection", err)
				close(over)
				watch.Wait()
			}
			if server && stopped.Err() == nil {
				t.Error("nobody saw the statement")
			}
			stop()
			return nil
		}}
		leaving, leave := context.WithCancel(t.Context())
		early := &caller{ctx: leaving, fn: fn, back: make(chan struct{})}
		last := &caller{fn: func(tx *gorm.DB) error {
			leave()
			select {
			case <-early.back:
			case <-time.After(check.Patience):
				t.Error("who left early is not back")
			}
			return take(tx, 42)
		}}
		conns := pool(t, db).Stats().OpenConnections
		before, after := taker(42), taker(42)
		togetherWithin(t, db, l, time.Minute, before, inFunction, inStatement, after, early, last)
		ok(t, "before", before.err)
		want(t, "in the function", inFunction.err, context.Canceled)
		if errors.Is(inFunction.err, gormlock.ErrCommitUnknown) {
			t.Errorf("what was rolled back is not unknown: %v", inFunction.err)
		}
		want(t, "in a statement", inStatement.err, context.Canceled)
		ok(t, "after", after.err)
		want(t, "while others are at work", early.err, gormlock.ErrCommitUnknown)
		want(t, "while others are at work", early.err, context.Canceled)
		ok(t, "last", last.err)
		wantLeft(t, db, 42, 6)
		if n := pool(t, db).Stats().OpenConnections; n < conns {
			t.Errorf("a connection was closed: %d of %d are left", n, conns)
		}
	})
}

// TestGrouped_FunctionNeedsAConnection: a function that waits for a connection which its group has waits no longer than a
// group lasts.
func TestGrouped_FunctionNeedsAConnection(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		pool(t, db).SetMaxOpenConns(1)
		a, b := taker(42), &caller{fn: func(tx *gorm.DB) error {
			return errors.Join(take(tx, 42), db.First(&Stock{}).Error) // on another connection, which there is not
		}}
		togetherWithin(t, db, l, 300*time.Millisecond, a, b)
		if a.err == nil || b.err == nil || errors.Is(errors.Join(a.err, b.err), gormlock.ErrCommitUnknown) {
			t.Errorf("a %v, b %v", a.err, b.err)
		}
		wantLeft(t, db, 42, 10)
	})
}

// TestGrouped_Fenced: the group registers the token of its lock, once for all.
func TestGrouped_Fenced(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 12)
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		var both sync.WaitGroup
		for lines, opts := range [][]gormlock.TransactionOption{{gormlock.Grouped(8)}, {gormlock.Grouped(8), gormlock.Fenced()}} {
			opts = append(opts, gormlock.WithWait(time.Minute))
			both.Go(func() { ok(t, "Transaction", gormlock.Transaction(db, "k", taker(42).fn, opts...)) })
			eventually(t, "it waits", func() bool { return gormlock.Queues(db) == lines+1 }) // in a line of its own
		}
		ok(t, "Release", k.Release(t.Context()))
		both.Wait()
		for range 2 {
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					ok(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
						return take(tx.Scopes(gormlock.Guard("k", gormlock.Fenced())), 42)
					}, gormlock.Grouped(8), gormlock.Fenced(), gormlock.WithWait(time.Minute)))
				})
			}
			all.Wait()
		}
		wantLeft(t, db, 42, 2)
		var n int64
		ok(t, "Count", db.Table("onelane_fences").Count(&n).Error)
		if n != 1 {
			t.Errorf("%d fences", n)
		}
	})
}

// TestGrouped_KeyNotHad: who waits gets the reason.
func TestGrouped_KeyNotHad(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		var all sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			all.Go(func() {
				errs[i] = gormlock.Transaction(db, "k", func(*gorm.DB) error { return nil }, gormlock.Grouped(8), gormlock.WithWait(time.Minute))
			})
		}
		eventually(t, "all wait", func() bool { return gormlock.Waiting(db) == len(errs) })
		ok(t, "Seal", k.Seal(t.Context(), []byte("out"), time.Minute))
		all.Wait()
		for _, err := range errs {
			want(t, "sealed", err, core.ErrSealed)
		}
		want(t, "bad key", gormlock.Transaction(db, "", func(*gorm.DB) error { return nil }, gormlock.Grouped(8)), core.ErrInvalidKey)
		ok(t, "Close", pool(t, db).Close())
		if gormlock.Transaction(db, "j", func(tx *gorm.DB) error { return nil }, gormlock.Grouped(8)) == nil {
			t.Error("BEGIN on a closed database succeeded")
		}
		eventually(t, "the key is free", func() bool { return !held(t, l, "j") })
	})
}

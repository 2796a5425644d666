package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// claiming runs functions before and after Once claims its row.
type claiming struct{ before, after func() }

type claimingTx struct {
	*sql.Tx
	pool *claiming
}

func (t *claimingTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	claims := strings.HasPrefix(query, "INSERT INTO onelane_once")
	if claims {
		t.pool.before()
	}
	result, err := t.Tx.ExecContext(ctx, query, args...)
	if claims {
		t.pool.after()
	}
	return result, err
}

// claimingDB is a second gorm.DB on the database of db, with the plugin.
func claimingDB(t *testing.T, db *gorm.DB) (*gorm.DB, *claiming) {
	t.Helper()
	p := &claiming{before: func() {}, after: func() {}}
	through := reopen(t, db)
	wrapTx(t, through, func(tx *sql.Tx) gorm.ConnPool { return &claimingTx{tx, p} })
	ok(t, "Use", through.Use(gormlock.New(locker(t, backendtest.Memory()))))
	return through, p
}

func rows(t testing.TB, db *gorm.DB) (n int64) {
	t.Helper()
	ok(t, "Count", db.Table("onelane_once").Count(&n).Error)
	return n
}

// TestOnce_PurgedWhileItLooks: a row is there when Once claims it, and gone when it looks at it. On PostgreSQL it runs anew then,
// as after any Purge; the others keep the row from Purge until it has been read.
func TestOnce_PurgedWhileItLooks(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		through, p := claimingDB(t, db)
		first, err := gormlock.Once(t.Context(), through, "k", charge)
		ok(t, "the first", err)
		age(t, db, 2*time.Hour)

		claims := 0
		purged := make(chan int64, 1)
		p.after = func() {
			if claims++; claims > 1 {
				return
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				n, err := gormlock.Purge(context.Background(), db, time.Hour)
				if err != nil {
					t.Errorf("Purge: %v", err)
				}
				purged <- n
			}()
			patience := 200 * time.Millisecond // it waits for us
			if db.Name() == "postgres" {
				patience = 20 * time.Second // it does not
			}
			select {
			case <-done:
			case <-time.After(patience):
			}
		}
		again, err := gormlock.Once(t.Context(), through, "k", charge)
		ok(t, "while it is purged", err)
		if n := <-purged; n != 1 {
			t.Errorf("%d rows were purged", n)
		}
		if anew := again != first; anew != (db.Name() == "postgres") || anew != (claims == 2) || again.Number == 0 {
			t.Errorf("%d claims, the result was %+v and is %+v", claims, first, again)
		}
		p.after = func() {}
		for range 2 {
			later, err := gormlock.Once(t.Context(), through, "k", charge)
			ok(t, "later", err)
			if db.Name() == "postgres" && later != again || later == first {
				t.Errorf("the result was %+v and %+v, and is %+v", first, again, later)
			}
		}
		if n := orders(t, db); n != 2 || rows(t, db) != 1 {
			t.Errorf("%d orders in two lives of the row, of which %d is there", n, rows(t, db))
		}
	})
}

// TestOnce_PurgedAgainAndAgain: there is an end to it: an error, and nothing was done.
func TestOnce_PurgedAgainAndAgain(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "postgres" {
			return // the row cannot be taken away, see above
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		through, p := claimingDB(t, db)
		claims := 0
		p.before = func() {
			claims++
			ok(t, "another's", db.Exec("INSERT INTO onelane_once (name, attempt, result, created_at) VALUES ('k', 'other', '1', 1) ON CONFLICT DO NOTHING").Error)
		}
		p.after = func() {
			_, err := gormlock.Purge(context.Background(), db, time.Hour)
			ok(t, "Purge", err)
		}
		_, err := gormlock.Once(t.Context(), through, "k", charge)
		if err == nil || !strings.Contains(err.Error(), `"k"`) || !strings.Contains(err.Error(), "Purge") || claims > 5 {
			t.Errorf("after %d claims: %v", claims, err)
		}
		if n := orders(t, db); n != 0 {
			t.Errorf("%d orders", n)
		}
		p.before, p.after = func() {}, func() {}
		_, err = gormlock.Once(t.Context(), through, "k", charge)
		ok(t, "later", err)
	})
}

// TestOnce_OneEffectPerLifeOfARow: many callers run in several processes, and all their locks are
// granted. Other callers purge rows that are hardly there. Each row had one effect, and everybody
// got the result of one.
func TestOnce_OneEffectPerLifeOfARow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		pool(t, db).SetMaxOpenConns(12)
		var calls, purges sync.WaitGroup
		var purged, told atomic.Int64
		var results sync.Map
		done := make(chan struct{})
		for range 2 {
			purges.Go(func() {
				for {
					n, err := gormlock.Purge(context.Background(), db, time.Microsecond)
					if err != nil {
						t.Errorf("Purge: %v", err)
					}
					purged.Add(n)
					select {
					case <-done:
						return
					case <-time.After(2 * time.Millisecond):
					}
				}
			})
		}
		for process := range 4 {
			own := holder(t, db, uint64(process+1))
			for range 2 {
				calls.Go(func() {
					for i := 0; i < 20 || purged.Load() < 4; i++ {
						r, err := gormlock.Once(t.Context(), own, fmt.Sprint("k", i%3), charge, gormlock.WithWait(time.Minute))
						for errors.Is(err, sql.ErrNoRows) { // purged before each look
							r, err = gormlock.Once(t.Context(), own, fmt.Sprint("k", i%3), charge, gormlock.WithWait(time.Minute))
						}
						if err != nil || r.Number == 0 || r.Note != "thanks" {
							t.Errorf("Once: %+v, %v", r, err)
						}
						told.Add(1)
						results.Store(r.Number, true)
					}
				})
			}
		}
		calls.Wait()
		close(done)
		purges.Wait()
		n, lives := orders(t, db), purged.Load()+rows(t, db)
		t.Logf("%d calls, %d lives", told.Load(), lives)
		if n != lives || lives < 4 {
			t.Errorf("%d orders in %d lives of rows", n, lives)
		}
		var distinct int64
		results.Range(func(number, _ any) bool {
			distinct++
			if db.Take(&Item{}, number).Error != nil {
				t.Errorf("the result %v is of no order", number)
			}
			return true
		})
		if distinct != n {
			t.Errorf("%d results of %d orders were told", distinct, n)
		}
	})
}

// TestOnce_ReadsNothingUncommitted: MariaDB's sessions may read what is not committed. A caller
// that does not get the lock must not get a result that may yet be rolled back. Nor may it get the
// state from the moment when its session began to read.
func TestOnce_ReadsNothingUncommitted(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" {
			return
		}
		ok(t, "Migrate", gormlock.Migrate(db))
		for variable, value := range map[string]string{"transaction_isolation": "'READ-UNCOMMITTED'", "autocommit": "0"} {
			own := withSetting(t, db, variable, value)
			pool(t, own).SetMaxOpenConns(1)
			l := locker(t, backendtest.Memory())
			ok(t, "Use", own.Use(gormlock.New(l)))
			_, err := l.Acquire(t.Context(), "k") // another process's
			ok(t, "Acquire", err)
			once := func() (int, error) {
				return gormlock.Once(t.Context(), own, "k", func(*gorm.DB) (int, error) { return 0, errors.New("it ran") },
					gormlock.WithWait(20*time.Millisecond))
			}
			_, err = once()
			want(t, variable+": before", err, core.ErrTaken)
			run := db.Begin()
			ok(t, "INSERT", run.Exec("INSERT INTO onelane_once (name, attempt, result, created_at) VALUES ('k', 'other', '7', 1)").Error)
			n, err := once()
			if want(t, variable+": uncommitted", err, core.ErrTaken); n != 0 {
				t.Errorf("%s: got %d, which is not committed", variable, n)
			}
			ok(t, "Commit", run.Commit().Error)
			n, err = once()
			if ok(t, variable+": committed", err); n != 7 {
				t.Errorf("%s: got %d", variable, n)
			}
			ok(t, "DELETE", db.Exec("DELETE FROM onelane_once").Error)
		}
	})
}

package gormlock_test

import (
	"context"
	"errors"
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

func lockTable(t testing.TB, db *gorm.DB, opts ...gormlock.TableOption) openTable {
	t.Helper()
	ok(t, "Migrate", gormlock.Migrate(db))
	patient := []gormlock.TableOption{gormlock.WithTimeout(time.Minute)}
	return opened(t, gormlock.Table(db, append(patient, opts...)...))
}

// openTable is a backend and what opens more of its kind.
type openTable struct {
	core.Sealer
	core.Opener
}

func (o openTable) release(ctx context.Context, g core.Grant) error {
	_, err := o.Release(ctx, g)
	return err
}

func opened(t testing.TB, o core.Opener) openTable {
	t.Helper()
	return openTable{backendtest.Open(t, o).(core.Sealer), o}
}

func request(key, owner string, ttl time.Duration) core.Request {
	return core.Request{Key: key, Owner: owner, TTL: ttl, Token: true}
}

func tokenOf(t testing.TB, k *core.Lock) uint64 {
	t.Helper()
	token, err := k.Token(t.Context())
	ok(t, "Token", err)
	return token
}

// TestTable_Conformance runs the suite of all backends.
func TestTable_Conformance(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		backendtest.TestSealer(t, func(t *testing.T) core.Backend {
			return backendtest.Open(t, gormlock.Table(db, gormlock.WithTimeout(time.Minute)))
		})
	})
}

// TestTable_ThroughLocker: what core makes of it: renewal, loss, re-entrance, seals.
func TestTable_ThroughLocker(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		l := locker(t, lockTable(t, db), core.WithTTL(4*time.Second))
		beyond := func(ttl time.Duration) error {
			return l.Do(t.Context(), "k", func(ctx context.Context) error {
				time.Sleep(ttl + time.Second)
				return l.Do(ctx, "k", func(ctx context.Context) error { return ctx.Err() })
			}, core.WithTTL(ttl))
		}
		err := beyond(4 * time.Second)
		for try := 1; errors.Is(err, core.ErrLost) && try < 4; try++ { // a busy machine needs a longer lease
			err = beyond(8 * time.Second)
		}
		ok(t, "Do", err)
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		ok(t, "Exec", db.Exec("DELETE FROM onelane_locks").Error)
		select {
		case <-k.Context().Done():
			want(t, "cause", context.Cause(k.Context()), core.ErrLost)
		case <-time.After(check.Patience):
			t.Error("the loss was not noticed")
		}
		k, err = l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
		ok(t, "Acquire", err)
		ok(t, "Seal", k.Seal(t.Context(), []byte("gone"), time.Minute))
		_, err = l.Acquire(t.Context(), "k")
		want(t, "Acquire", err, core.ErrSealed)
		ok(t, "Unseal", l.Unseal(t.Context(), "k"))
		again, err := l.Acquire(t.Context(), "k")
		if ok(t, "Acquire", err); tokenOf(t, again) <= tokenOf(t, k) {
			t.Errorf("token %d after %d", tokenOf(t, again), tokenOf(t, k))
		}
		ok(t, "Release", again.Release(t.Context()))
	})
}

// TestTable_Guards: a database whose own table is what guards its transactions.
func TestTable_Guards(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" { // where a transaction keeps the lock from being renewed: another file, see Table
			return
		}
		l := locker(t, lockTable(t, reopen(t, db)))
		ok(t, "Use", db.Use(gormlock.New(l, gormlock.Fenced())))
		put(t, db, 42, 50)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				for range 4 {
					err := db.Scopes(gormlock.Guard("stock:42", gormlock.WithWait(time.Minute))).Transaction(func(tx *gorm.DB) error {
						var s Stock
						if err := tx.Take(&s, "sku = 42").Error; err != nil {
							return err
						}
						return tx.Model(&s).Update("left", s.Left-1).Error
					})
					if err != nil {
						t.Errorf("Transaction: %v", err)
					}
				}
			})
		}
		all.Wait()
		wantLeft(t, db, 42, 10)
	})
}

// TestTable_ClockOfTheDatabase: the database's clock decides whether a row's end has passed. That
// clock is an hour ahead in one session here, and its time zone does not matter.
func TestTable_ClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	ahead := map[string][]string{
		"mysql": {"SET time_zone = '+13:00'", "SET timestamp = UNIX_TIMESTAMP() + 3600"},
		"postgres": {"SET TIME ZONE 'Pacific/Auckland'", "CREATE SCHEMA fake", "SET search_path = fake, pg_catalog, public",
			"CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz AS 'SELECT pg_catalog.clock_timestamp() + interval ''1 hour''' LANGUAGE sql"},
	}
	zones := map[string]string{"mysql": "SET time_zone = '-12:00'", "postgres": "SET TIME ZONE 'America/Los_Angeles'"}
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" { // its clock is the process's own
			return
		}
		b := lockTable(t, db)
		g, err := b.Acquire(t.Context(), request("k", "now", 30*time.Minute))
		ok(t, "Acquire", err)

		pool(t, db).SetMaxOpenConns(1) // one session
		ok(t, zones[db.Name()], db.Exec(zones[db.Name()]).Error)
		st, err := b.Inspect(t.Context(), "k")
		if ok(t, "Inspect", err); st.Status != core.Held || st.ExpiresIn < 29*time.Minute || st.ExpiresIn > 30*time.Minute {
			t.Errorf("in another time zone it is %v, for %v", st.Status, st.ExpiresIn)
		}
		for _, s := range ahead[db.Name()] {
			ok(t, s, db.Exec(s).Error)
		}
		_, err = b.Extend(t.Context(), g, time.Minute)
		want(t, "Extend of a lease that is over", err, core.ErrLost)
		later, err := b.Acquire(t.Context(), request("k", "later", time.Minute))
		if ok(t, "taking over", err); later.Token < g.Token+g.Tokens {
			t.Errorf("token %d after %d", later.Token, g.Token)
		}
		want(t, "Release by who was taken over", b.release(t.Context(), g), core.ErrLost)
	})
}

// TestTable_ReturnsInTime: a row that somebody else has locked keeps no call beyond its context, or
// the time-out. A call that was given up holds nothing.
func TestTable_ReturnsInTime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" { // has no row locks
			return
		}
		b := lockTable(t, db)
		g, err := b.Acquire(t.Context(), request("k", "first", time.Minute))
		ok(t, "Acquire", err)
		ok(t, "Release", b.release(t.Context(), g))

		tx := db.Begin()
		ok(t, "FOR UPDATE", tx.Exec("SELECT 1 FROM onelane_locks FOR UPDATE").Error)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err = b.Acquire(ctx, request("k", "late", time.Minute))
		want(t, "Acquire", err, core.ErrUnavailable)
		want(t, "Acquire", err, context.DeadlineExceeded)
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
		bounded := opened(t, gormlock.Table(db, gormlock.WithTimeout(100*time.Millisecond)))
		_, err = bounded.Acquire(context.Background(), request("k", "bounded", time.Minute))
		want(t, "Acquire with a time-out", err, core.ErrUnavailable)
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
		ok(t, "Rollback", tx.Rollback().Error)
		eventually(t, "the key is free", func() bool {
			g, err := b.Acquire(t.Context(), request("k", "next", time.Minute))
			return err == nil && b.release(t.Context(), g) == nil
		})
	})
}

func TestTable_Unavailable(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		b := opened(t, gormlock.Table(db, gormlock.WithTimeout(time.Minute))) // without its table
		l := locker(t, b, core.WithOutageWait(0))
		_, err := l.Acquire(t.Context(), "stock:42")
		want(t, "without the table", err, core.ErrUnavailable)
		if !strings.Contains(err.Error(), `"stock:42"`) {
			t.Errorf("%v does not name the key", err)
		}
		ok(t, "Migrate", gormlock.Migrate(db))
		k, err := l.Acquire(t.Context(), "stock:42")
		ok(t, "Acquire", err)
		ok(t, "Release", k.Release(t.Context()))
		_, err = b.Acquire(t.Context(), request(strings.Repeat("k", 1701), "o", time.Minute))
		want(t, "a long key", err, core.ErrInvalidKey)
		_, err = b.Acquire(t.Context(), request(strings.Repeat("k", 1700), strings.Repeat("o", 512), time.Minute))
		ok(t, "the longest key", err)
		ok(t, "Close", pool(t, db).Close())
		_, err = l.Acquire(t.Context(), "stock:42")
		want(t, "closed", err, core.ErrUnavailable)
	})
}

func TestTable_OpenErrors(t *testing.T) {
	t.Parallel()
	refused := func(what string, o core.Opener) {
		t.Helper()
		if _, err := core.New(o); err == nil || !strings.HasPrefix(err.Error(), "gormlock: Table") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error {
			refused("in a transaction", gormlock.Table(tx))
			return nil
		}))
		refused("a bad time-out", gormlock.Table(db, gormlock.WithTimeout(0)))
		locker(t, gormlock.Table(db, nil))
	})
	refused("another database", gormlock.Table(&gorm.DB{Config: &gorm.Config{}}))
	refused("nil", gormlock.Table(nil))
}

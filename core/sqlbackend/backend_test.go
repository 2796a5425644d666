package sqlbackend_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestConformance runs the suite of all backends.
func TestConformance(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		backendtest.TestSealer(t, func(t *testing.T) core.Backend {
			return backendtest.Open(t, at(db.DB))
		})
	})
}

// TestThroughLocker: what core makes of it: renewal, loss, re-entrance, seals.
func TestThroughLocker(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		l := locker(t, at(db.DB), core.WithTTL(4*time.Second))
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
		db.exec(t, "DELETE FROM onelane_locks")
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

// TestClockOfTheDatabase: the database's clock decides whether a row's end has passed. That
// clock is an hour ahead in one session here, and its time zone does not matter.
func TestClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	ahead := map[string][]string{
		"mysql": {"SET time_zone = '+13:00'", "SET timestamp = UNIX_TIMESTAMP() + 3600"},
		"postgres": {"SET TIME ZONE 'Pacific/Auckland'", "CREATE SCHEMA fake", "SET search_path = fake, pg_catalog, public",
			"CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz AS 'SELECT pg_catalog.clock_timestamp() + interval ''1 hour''' LANGUAGE sql"},
	}
	zones := map[string]string{"mysql": "SET time_zone = '-12:00'", "postgres": "SET TIME ZONE 'America/Los_Angeles'"}
	databases(t, func(t *testing.T, db *database) {
		if db.name == "sqlite" { // its clock is the process's own
			return
		}
		db.migrate(t)
		b := open(t, at(db.DB))
		g, err := b.Acquire(t.Context(), request("k", "now", 30*time.Minute))
		ok(t, "Acquire", err)

		db.SetMaxOpenConns(1) // one session
		db.exec(t, zones[db.name])
		st, err := b.Inspect(t.Context(), "k")
		if ok(t, "Inspect", err); st.Status != core.Held || st.ExpiresIn < 29*time.Minute || st.ExpiresIn > 30*time.Minute {
			t.Errorf("in another time zone it is %v, for %v", st.Status, st.ExpiresIn)
		}
		for _, s := range ahead[db.name] {
			db.exec(t, s)
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

// TestReturnsInTime: a row that somebody else has locked keeps no call beyond its context, or
// the time-out. A call that was given up holds nothing.
func TestReturnsInTime(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		if db.name == "sqlite" { // has no row locks
			return
		}
		db.migrate(t)
		b := open(t, at(db.DB))
		g, err := b.Acquire(t.Context(), request("k", "first", time.Minute))
		ok(t, "Acquire", err)
		ok(t, "Release", b.release(t.Context(), g))

		tx, err := db.Begin()
		ok(t, "Begin", err)
		_, err = tx.Exec("SELECT 1 FROM onelane_locks FOR UPDATE")
		ok(t, "FOR UPDATE", err)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err = b.Acquire(ctx, request("k", "late", time.Minute))
		want(t, "Acquire", err, core.ErrUnavailable)
		want(t, "Acquire", err, context.DeadlineExceeded)
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
		bounded := open(t, sqlbackend.New(db.DB, sqlbackend.WithTimeout(100*time.Millisecond)))
		_, err = bounded.Acquire(context.Background(), request("k", "bounded", time.Minute))
		want(t, "Acquire with a time-out", err, core.ErrUnavailable)
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
		ok(t, "Rollback", tx.Rollback())
		eventually(t, "the key is free", func() bool {
			g, err := b.Acquire(t.Context(), request("k", "next", time.Minute))
			return err == nil && b.release(t.Context(), g) == nil
		})
	})
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		b := open(t, at(db.DB)) // without its table
		l := locker(t, b, core.WithOutageWait(0))
		_, err := l.Acquire(t.Context(), "stock:42")
		want(t, "without the table", err, core.ErrUnavailable)
		if !strings.Contains(err.Error(), `"stock:42"`) {
			t.Errorf("%v does not name the key", err)
		}
		db.migrate(t)
		k, err := l.Acquire(t.Context(), "stock:42")
		ok(t, "Acquire", err)
		ok(t, "Release", k.Release(t.Context()))
		_, err = b.Acquire(t.Context(), request(strings.Repeat("k", 1701), "o", time.Minute))
		want(t, "a long key", err, core.ErrInvalidKey)
		_, err = b.Acquire(t.Context(), request(strings.Repeat("k", 1700), strings.Repeat("o", 512), time.Minute))
		ok(t, "the longest key", err)
		ok(t, "Close", db.Close())
		_, err = l.Acquire(t.Context(), "stock:42")
		want(t, "closed", err, core.ErrUnavailable)
	})
}

func TestNew_Refusals(t *testing.T) {
	t.Parallel()
	refused := func(what string, o core.Opener) {
		t.Helper()
		if _, err := core.New(o); err == nil || !strings.HasPrefix(err.Error(), "sqlbackend: ") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	db := sqliteFile(t)
	refused("nil", sqlbackend.New(nil))
	refused("a bad time-out", sqlbackend.New(db, sqlbackend.WithTimeout(0)))
	locker(t, sqlbackend.New(db, nil))
}

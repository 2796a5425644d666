package sqlbackend_test

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// with opens the database of a server again, with a setting in each session.
func (d *database) with(t *testing.T, settings map[string]string) *database {
	t.Helper()
	const level, old = "transaction_isolation", "tx_isolation" // until MariaDB 11.1
	if d.name == "mysql" && strings.Contains(query[string](t, d, "SELECT VERSION()"), "MariaDB") {
		settings = maps.Clone(settings)
		if value, found := settings[level]; found {
			settings[old] = value
			delete(settings, level)
		}
	}
	return d.reopen(t, func(my *gomysql.Config, pg *pgx.ConnConfig) {
		if my != nil {
			my.Params = settings
		} else {
			pg.RuntimeParams = settings
		}
	})
}

// eachLevel runs fn on each database whose sessions have each default isolation level. SQLite has one.
func eachLevel(t *testing.T, fn func(t *testing.T, db *database)) {
	t.Helper()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		if db.name == "sqlite" {
			fn(t, db)
			return
		}
		for _, level := range []string{"read uncommitted", "read committed", "repeatable read", "serializable"} {
			t.Run(level, func(t *testing.T) {
				settings := map[string]string{"default_transaction_isolation": level}
				if db.name == "mysql" {
					settings = map[string]string{"transaction_isolation": "'" + strings.ToUpper(strings.ReplaceAll(level, " ", "-")) + "'"}
				}
				fn(t, db.with(t, settings))
			})
		}
	})
}

// TestIsolation_OneHolderAtATime: several processes, each with its Locker, on each isolation level.
func TestIsolation_OneHolderAtATime(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, db *database) {
		var inside, turns atomic.Int32
		var last atomic.Uint64
		var all sync.WaitGroup
		lockers := make([]*core.Locker, 4)
		for i := range lockers {
			lockers[i] = locker(t, at(db.DB))
		}
		for i := range 8 { // two in each process, which hand over to each other
			l := lockers[i/2]
			all.Go(func() {
				for range 5 {
					k, err := l.Acquire(t.Context(), "k", core.WithWait(time.Minute), core.WithToken())
					if err != nil {
						t.Errorf("Acquire: %v", err)
						return
					}
					token := tokenOf(t, k)
					if n := inside.Add(1); n != 1 || token <= last.Load() {
						t.Errorf("%d inside, token %d after %d", n, token, last.Load())
					}
					last.Store(token)
					turns.Add(1)
					inside.Add(-1)
					if err := k.Release(t.Context()); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		all.Wait()
		if n := turns.Load(); n != 40 {
			t.Errorf("%d turns, want 40", n)
		}
	})
}

// TestOtherModes runs the suite of all backends with other settings of the sessions and of the driver.
func TestOtherModes(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, plain *database) {
		plain.migrate(t)
		modes := map[string]*database{}
		switch plain.name {
		case "mysql":
			modes["serializable"] = plain.with(t, map[string]string{
				"transaction_isolation": "'SERIALIZABLE'", "sql_mode": "''", "time_zone": "'+05:30'"})
			if check.Long {
				modes["found rows, interpolated"] = plain.reopen(t, func(my *gomysql.Config, _ *pgx.ConnConfig) {
					my.ClientFoundRows, my.InterpolateParams = true, true
				})
				modes["read committed"] = plain.with(t, map[string]string{"transaction_isolation": "'READ-COMMITTED'", "sql_mode": "'ANSI'"})
			}
		case "postgres":
			modes["serializable"] = plain.with(t, map[string]string{
				"default_transaction_isolation": "serializable", "timezone": "Asia/Kolkata"})
			if check.Long {
				modes["simple protocol"] = plain.reopen(t, func(_ *gomysql.Config, pg *pgx.ConnConfig) {
					pg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
				})
				modes["repeatable read"] = plain.with(t, map[string]string{"default_transaction_isolation": "repeatable read"})
			}
		}
		var suites sync.WaitGroup // most of their time they wait
		defer suites.Wait()
		for name, db := range modes {
			suites.Go(func() {
				t.Run(name, func(t *testing.T) {
					backendtest.TestSealer(t, func(t *testing.T) core.Backend { return backendtest.Open(t, at(db.DB)) })
				})
			})
		}
	})
}

// TestAutocommitOff: nothing is locked, and the error says what to do. Migrate and Purge work.
func TestAutocommitOff(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		if db.name != "mysql" {
			return
		}
		off := db.with(t, map[string]string{"autocommit": "0"})
		off.migrate(t)
		l := locker(t, at(off.DB))
		for range 2 {
			_, err := l.Acquire(t.Context(), "stock:42", core.WithOutageWait(0))
			if want(t, "Acquire", err, core.ErrUnavailable); !strings.Contains(err.Error(), "take autocommit=0 out of the DSN") {
				t.Errorf("%v does not say what to do", err)
			}
		}
		on := locker(t, at(db.DB))
		k, err := on.TryAcquire(t.Context(), "stock:42")
		ok(t, "with autocommit", err)
		ok(t, "Release", k.Release(t.Context()))
		db.exec(t, "UPDATE onelane_locks SET fence = 1")
		// A read leaves a transaction open, in which no level of isolation can be set.
		off.DB.SetMaxOpenConns(1)
		_ = query[int](t, off, "SELECT COUNT(*) FROM onelane_locks")
		purged(t, off, time.Hour, 1)
		if n := query[int](t, db, "SELECT COUNT(*) FROM onelane_locks"); n != 0 {
			t.Errorf("Purge left %d rows: it was not committed", n)
		}
	})
}

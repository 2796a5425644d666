package sqlbackend_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/internal/sqlrelay"
)

// age makes all rows older.
func age(t testing.TB, db *database, by time.Duration) {
	t.Helper()
	us := by.Microseconds()
	db.exec(t, "UPDATE onelane_locks SET token = token - ?, fence = fence - ?, acquired_at = acquired_at - ?, expires_at = expires_at - ?", us, us, us, us)
}

func purged(t testing.TB, db *database, olderThan time.Duration, want int64) {
	t.Helper()
	n, err := sqlbackend.Purge(t.Context(), db.DB, olderThan)
	if ok(t, "Purge", err); n != want {
		t.Errorf("Purge(%v) deleted %d rows, want %d", olderThan, n, want)
	}
}

// TestPurge: of 1,102 old rows two are needed. Tokens go on increasing.
func TestPurge(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		l := locker(t, at(db.DB))
		free, err := l.Acquire(t.Context(), "free")
		ok(t, "Acquire", err)
		earlier := tokenOf(t, free)
		ok(t, "Release", free.Release(t.Context()))
		kept, err := l.Acquire(t.Context(), "held", core.WithTTL(100*time.Hour), core.WithMaxHold(0))
		ok(t, "Acquire", err)
		sealed, err := l.Acquire(t.Context(), "sealed")
		ok(t, "Acquire", err)
		ok(t, "Seal", sealed.Seal(t.Context(), []byte("v"), 100*time.Hour))
		// More than one batch.
		const columns = "INSERT INTO onelane_locks (name, state, owner, token, fence, acquired_at, expires_at) "
		db.exec(t, columns+"VALUES (?, 0, 'o', 1, 1, 1, 1)", []byte("n"))
		for n := 1; n < 1024; n *= 2 {
			concat := map[string]string{"mysql": "CONCAT(name, 'x')", "postgres": "name || 'x'::bytea", "sqlite": "CAST(name || 'x' AS BLOB)"}[db.name]
			for range n - 1 { // a longer text for each
				concat = strings.Replace(concat, "'x", "'xx", 1)
			}
			db.exec(t, columns+"SELECT "+concat+", 0, owner, 1, 1, 1, 1 FROM onelane_locks WHERE fence = 1")
		}
		purged(t, db, time.Minute, 1024)
		purged(t, db, time.Minute, 0)
		age(t, db, 2*time.Hour)
		purged(t, db, time.Minute, 1) // the free key
		purged(t, db, time.Minute, 0)
		if st, err := l.Inspect(t.Context(), "sealed"); err != nil || st.Status != core.Sealed {
			t.Errorf("the seal is %v, %v", st.Status, err)
		}
		ok(t, "Release", kept.Release(t.Context()))

		again, err := l.Acquire(t.Context(), "free")
		if ok(t, "Acquire", err); tokenOf(t, again) <= earlier {
			t.Errorf("token %d after %d", tokenOf(t, again), earlier)
		}
		ok(t, "Release", again.Release(t.Context()))
	})
}

// An orphan is old when its retention is over, not when its lease is.
func TestPurge_KeepsOrphans(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		l := locker(t, at(db.DB))
		k, err := l.Acquire(t.Context(), "k", core.WithOrphan(100*time.Hour), core.WithMaxHold(0), core.WithTTL(time.Minute))
		ok(t, "Acquire", err)
		age(t, db, 99*time.Hour)
		purged(t, db, time.Minute, 0)
		st, err := l.Inspect(t.Context(), "k")
		if ok(t, "Inspect", err); st.Status != core.Orphaned || st.Owner != k.Owner() || time.Since(st.Since) < 98*time.Hour {
			t.Errorf("Inspect = %+v", st)
		}
		age(t, db, 3*time.Hour)
		purged(t, db, time.Minute, 1)
	})
}

// A key that was unsealed is free, whatever the seal was made for.
func TestPurge_UnsealedKey(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		l := locker(t, at(db.DB))
		k, err := l.Acquire(t.Context(), "sealed for a year")
		ok(t, "Acquire", err)
		ok(t, "Seal", k.Seal(t.Context(), []byte("v"), 365*24*time.Hour))
		ok(t, "Unseal", l.Unseal(t.Context(), "sealed for a year"))
		k, err = l.Acquire(t.Context(), "released")
		ok(t, "Acquire", err)
		ok(t, "Release", k.Release(t.Context()))
		age(t, db, 48*time.Hour)
		purged(t, db, time.Hour, 2)
	})
}

// TestPurge_KeyWhoseSealEnded: it was acquired long ago and is free. So it goes, although it was
// never released.
func TestPurge_KeyWhoseSealEnded(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		k, err := locker(t, at(db.DB)).Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		ok(t, "Seal", k.Seal(t.Context(), []byte("an answer"), 24*time.Hour))
		age(t, db, 23*time.Hour)
		purged(t, db, 2*time.Hour, 0)
		age(t, db, 2*time.Hour) // the seal ended an hour ago
		purged(t, db, 2*time.Hour, 1)
	})
}

// TestPurge_WaitsForNoTransaction: Purge looks for old rows without locking them, whatever the level of
// the sessions is. A transaction may have a row locked that is not old.
func TestPurge_WaitsForNoTransaction(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, db *database) {
		if db.name == "sqlite" { // has one writer, and one level
			return
		}
		_, err := open(t, at(db.DB)).Acquire(t.Context(), request(t.Name(), "o/1", time.Hour))
		ok(t, "Acquire", err)
		tx, err := db.Begin()
		ok(t, "Begin", err)
		defer tx.Rollback()
		_, err = tx.Exec("UPDATE onelane_locks SET acquired_at = acquired_at + 1")
		ok(t, "UPDATE", err)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err = sqlbackend.Purge(ctx, db.DB, time.Hour)
		ok(t, "Purge", err)
	})
}

// TestPurge_FailedCommit: a COMMIT that fails may leave its transaction open. Nobody else gets that
// connection: the next statement on it would belong to the transaction, and the next BEGIN may commit it.
func TestPurge_FailedCommit(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		failed := errors.New("the answer was lost")
		network := &sqlrelay.Relay{Primary: db.DB}
		through := network.Open(t)
		ok(t, "Ping", through.Ping())
		network.Commit = func(run func() error) error { return errors.Join(failed, run()) }
		_, err := sqlbackend.Purge(t.Context(), through, time.Hour)
		want(t, "Purge", err, failed)
		if n := through.Stats().OpenConnections; n != 0 {
			t.Errorf("%d connections stayed in the pool", n)
		}
	})
}

func TestPurge_Refusals(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		k, err := locker(t, at(db.DB)).Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		ok(t, "Release", k.Release(t.Context()))
		purged(t, db, math.MaxInt64, 0) // older than anything can be
		for _, age := range []time.Duration{0, -time.Hour} {
			if _, err := sqlbackend.Purge(t.Context(), db.DB, age); err == nil {
				t.Errorf("Purge(%v) succeeded", age)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := sqlbackend.Purge(ctx, db.DB, time.Hour); !errors.Is(err, context.Canceled) {
			t.Errorf("after the context's end: %v", err)
		}
	})
}

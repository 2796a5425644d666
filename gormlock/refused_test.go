package gormlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestTransaction_LocksBeforeGORMMakesAnything: a caller that does not get the key, as it is sealed
// or taken, sends no SQL and takes no connection. GORM prepares no transaction for it, which would
// take several times as much as the rest.
func TestTransaction_LocksBeforeGORMMakesAnything(t *testing.T) { // not parallel: it counts
	for _, prepared := range []bool{false, true} {
		db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard, PrepareStmt: prepared})
		ok(t, "Open", err)
		defer func() { _ = pool(t, db).Close() }()
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		pool(t, db).SetMaxOpenConns(1)
		conn, err := pool(t, db).Conn(t.Context()) // there is no other
		ok(t, "Conn", err)
		defer func() { _ = conn.Close() }()

		sealed, err := l.Acquire(t.Context(), "sealed")
		ok(t, "Acquire", err)
		ok(t, "Seal", sealed.Seal(t.Context(), []byte("an ordinary one"), time.Hour))
		_, err = l.Acquire(t.Context(), "taken")
		ok(t, "Acquire", err)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		session := db.WithContext(ctx)
		refused := func(key string, wait time.Duration, target error) {
			err := gormlock.Transaction(session, key, func(*gorm.DB) error {
				t.Errorf("%s: it ran", key)
				return nil
			}, gormlock.WithWait(wait))
			want(t, key, err, target)
		}
		before := pool(t, db).Stats()
		refused("taken", time.Millisecond, core.ErrTaken)
		asking := testing.AllocsPerRun(200, func() {
			_, err := l.AcquireAll(ctx, []string{"sealed"}, core.WithWait(time.Minute))
			want(t, "Acquire", err, core.ErrSealed)
		})
		all := testing.AllocsPerRun(200, func() { refused("sealed", time.Minute, core.ErrSealed) })
		t.Logf("prepared %v: %v allocations, of which %v ask for the key", prepared, all, asking)
		if all-asking > 10 {
			t.Errorf("prepared %v: %v allocations more than asking for the key takes", prepared, all-asking)
		}
		after := pool(t, db).Stats()
		if after.WaitCount != before.WaitCount || after.OpenConnections != before.OpenConnections {
			t.Errorf("connections were wanted: %+v, then %+v", before, after)
		}
	}
}

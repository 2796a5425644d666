package gormlock_test

import (
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/plugin/dbresolver"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// splitDB returns db behind a proxy that sends plain SELECTs to a replica, and the replica.
func splitDB(t *testing.T, db *gorm.DB) (split, replica *gorm.DB) {
	t.Helper()
	ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
	ok(t, "Migrate", gormlock.Migrate(db))
	replica = beside(t, db, "replica", 1)
	ok(t, "Migrate", gormlock.Migrate(replica))
	r := &relay{primary: pool(t, db), replica: pool(t, replica)}
	return r.open(t, db), replica
}

// The replica still has the lock and the seal of long ago.
func TestTable_StaleReplica(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" { // has no replicas
			return
		}
		split, replica := splitDB(t, db)
		patient := gormlock.WithTimeout(time.Minute)
		stale, b := opened(t, gormlock.Table(replica, patient)), opened(t, gormlock.Table(split, patient))
		_, err := stale.Acquire(t.Context(), request("held", "other/1", time.Hour))
		ok(t, "Acquire on the replica", err)
		g, err := stale.Acquire(t.Context(), request("sealed", "other/1", time.Hour))
		ok(t, "Acquire on the replica", err)
		ok(t, "Seal on the replica", stale.Seal(t.Context(), g, []byte("old"), time.Hour))
		for _, key := range []string{"held", "sealed"} {
			g, err := b.Acquire(t.Context(), request(key, "me/1", time.Minute))
			ok(t, "Acquire", err)
			st, err := b.Inspect(t.Context(), key)
			if ok(t, "Inspect", err); st.Owner != "me/1" {
				t.Errorf("%s: the owner is %q", key, st.Owner)
			}
			ok(t, "Release", b.release(t.Context(), g))
		}
	})
}

// A replica that knows a result which was purged since must not answer for the writer.
func TestOnce_StaleReplica(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" {
			return
		}
		split, replica := splitDB(t, db)
		l := locker(t, backendtest.Memory())
		for _, db := range []*gorm.DB{split, replica} {
			ok(t, "Use", db.Use(gormlock.New(l)))
		}
		n := 0
		run := func(db *gorm.DB, opts ...gormlock.TransactionOption) error {
			_, err := gormlock.Once(t.Context(), db, "k", func(*gorm.DB) (int, error) {
				n++
				return n, nil
			}, opts...)
			return err
		}
		short := gormlock.WithWait(500 * time.Millisecond)
		ok(t, "Once on the replica", run(replica))
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		want(t, "Once without the lock", run(split, short), core.ErrTaken)
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Once", run(split))
		if n != 2 {
			t.Errorf("it ran %d times", n)
		}
		k, err = l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		ok(t, "Once that is done, without the lock", run(split, short))
		ok(t, "Release", k.Release(t.Context()))
	})
}

// dbresolver comes after the Locker, as it must come after the plugin.
func TestTable_DBResolver(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, main *gorm.DB) {
		source, replica := beside(t, main, "source", 1), beside(t, main, "replica", 1)
		l := locker(t, gormlock.Table(main, gormlock.WithTimeout(time.Minute)), core.WithPrefix(""))
		ok(t, "Use", main.Use(gormlock.New(l)))
		ok(t, "Use", main.Use(dbresolver.Register(dbresolver.Config{
			Sources: []gorm.Dialector{source.Dialector}, Replicas: []gorm.Dialector{replica.Dialector},
		})))
		ok(t, "Migrate", gormlock.Migrate(main))
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		at := opened(t, gormlock.Table(source, gormlock.WithTimeout(time.Minute)))
		st, err := at.Inspect(t.Context(), "k")
		if ok(t, "Inspect", err); st.Status != core.Held {
			t.Errorf("on the source it is %v", st.Status)
		}
		ok(t, "Release", k.Release(t.Context()))
		for name, db := range map[string]*gorm.DB{"main": reopen(t, main), "replica": replica} {
			if name == "replica" && db.Migrator().HasTable("onelane_locks") {
				t.Errorf("Migrate wrote to the %s", name)
			}
		}
	})
}

func TestTable_RoundTrips(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		r := &relay{primary: pool(t, db)}
		b := opened(t, gormlock.Table(r.open(t, db), gormlock.WithTimeout(time.Minute)))
		ok(t, "Ping", b.Ping(t.Context())) // it also looks at autocommit, once
		var g core.Grant
		acquire := func(owner string) (err error) {
			g, err = b.Acquire(t.Context(), request("k", owner, time.Minute))
			return err
		}
		for _, step := range []struct {
			name string
			most int32
			do   func() error
		}{
			{"Acquire of a new key", 3, func() error { return acquire("a/1") }},
			{"Acquire of a taken key", 1, func() error { want(t, "Acquire", acquire("b/1"), core.ErrTaken); return nil }},
			{"Release", 1, func() error { g.Key, g.Owner = "k", "a/1"; return b.release(t.Context(), g) }},
			{"Acquire of a free key", 3, func() error { return acquire("a/2") }},
		} {
			before := r.statements.Load()
			ok(t, step.name, step.do())
			if n := r.statements.Load() - before; n > step.most {
				t.Errorf("%s: %d statements, want at most %d", step.name, n, step.most)
			}
		}
	})
}

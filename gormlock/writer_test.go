package gormlock_test

import (
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/plugin/dbresolver"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/sqlrelay"
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
	return through(t, db, &sqlrelay.Relay{Primary: pool(t, db), Replica: pool(t, replica)}), replica
}

// through returns a database of db's kind whose connections go through r.
func through(t *testing.T, db *gorm.DB, r *sqlrelay.Relay) *gorm.DB {
	t.Helper()
	conns := r.Open(t)
	dialector := map[string]gorm.Dialector{
		"sqlite":   &sqlite.Dialector{Conn: conns},
		"mysql":    mysql.New(mysql.Config{Conn: conns}),
		"postgres": postgres.New(postgres.Config{Conn: conns}),
	}[db.Name()]
	own, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	return own
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

// With dbresolver, Migrate makes the tables at the source, and Purge deletes there.
func TestMigrate_DBResolver(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, main *gorm.DB) {
		source, replica := beside(t, main, "source", 1), beside(t, main, "replica", 1)
		plain := reopen(t, main)
		ok(t, "Use", main.Use(gormlock.New(locker(t, backendtest.Memory()))))
		ok(t, "Use", main.Use(dbresolver.Register(dbresolver.Config{
			Sources: []gorm.Dialector{source.Dialector}, Replicas: []gorm.Dialector{replica.Dialector},
		})))
		ok(t, "Migrate", gormlock.Migrate(main))
		for _, table := range []string{"onelane_fences", "onelane_once"} {
			if !source.Migrator().HasTable(table) || replica.Migrator().HasTable(table) || plain.Migrator().HasTable(table) {
				t.Errorf("%s: it must be at the source alone", table)
			}
		}
		ok(t, "INSERT", source.Exec("INSERT INTO onelane_once (name, attempt, created_at) SELECT CAST('k' AS "+binary(source)+"), 'a', 1").Error)
		n, err := gormlock.Purge(t.Context(), main, time.Hour)
		if ok(t, "Purge", err); n != 1 {
			t.Errorf("Purge deleted %d rows at the source", n)
		}
	})
}

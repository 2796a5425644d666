package sqlbackend_test

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/internal/check"
)

func refusedByMigrate(t *testing.T, db *database, what string) {
	t.Helper()
	err := sqlbackend.Migrate(t.Context(), db.DB)
	if err == nil || !strings.HasPrefix(err.Error(), "sqlbackend: Migrate: ") || !strings.Contains(err.Error(), "onelane_locks") {
		t.Errorf("%s: got %v", what, err)
	}
}

// TestMigrate_DocumentedSchema: a table that a migration tool made of the file is as Migrate makes it.
func TestMigrate_DocumentedSchema(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		file, err := os.ReadFile("schema/" + db.name + ".sql")
		ok(t, "ReadFile", err)
		db.exec(t, strings.TrimRight(string(file), ";\n"))
		db.migrate(t)
		k, err := locker(t, at(db.DB)).Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		ok(t, "Release", k.Release(t.Context()))
	})
}

// TestMigrate_AtOnce: several processes start, each migrates.
func TestMigrate_AtOnce(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if err := sqlbackend.Migrate(t.Context(), db.DB); err != nil {
					t.Errorf("Migrate: %v", err)
				}
			})
		}
		all.Wait()
		k, err := locker(t, at(db.DB)).Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		ok(t, "Release", k.Release(t.Context()))
	})
}

// TestMigrate_OtherKey: a key that is compared as text, no key, and a key of two columns, in which a name
// could come twice.
func TestMigrate_OtherKey(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		binary := map[string]string{"mysql": "VARBINARY(512)", "postgres": "BYTEA", "sqlite": "BLOB"}[db.name]
		for what, columns := range map[string]string{
			"a key that is text":   "name VARCHAR(255) NOT NULL PRIMARY KEY",
			"no name":              "id INTEGER NOT NULL PRIMARY KEY",
			"a key of two columns": "name " + binary + " NOT NULL, state INTEGER NOT NULL, PRIMARY KEY (name, state)",
		} {
			db.exec(t, "CREATE TABLE onelane_locks ("+columns+")")
			refusedByMigrate(t, db, what)
			db.exec(t, "DROP TABLE onelane_locks")
		}
		db.migrate(t)
	})
}

// TestMigrate_TooShort: MySQL refuses what does not fit into a column, or cuts it off, as the server is set.
func TestMigrate_TooShort(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		if db.name != "mysql" {
			return // the others' binary columns have no length
		}
		for column, change := range map[string]string{
			"name":        "MODIFY name VARBINARY(512) NOT NULL",
			"owner":       "MODIFY owner VARBINARY(255) NOT NULL",
			"value":       "MODIFY value BLOB NULL",
			"primary key": "DROP PRIMARY KEY, MODIFY name BLOB NOT NULL, ADD PRIMARY KEY (name(1700))",
		} {
			db.migrate(t)
			db.exec(t, "ALTER TABLE onelane_locks "+change)
			if err := sqlbackend.Migrate(t.Context(), db.DB); err == nil || !strings.Contains(err.Error(), column) {
				t.Errorf("%s: got %v", column, err)
			}
			db.exec(t, "DROP TABLE onelane_locks")
		}
		db.migrate(t)
		db.exec(t, "ALTER TABLE onelane_locks MODIFY owner VARBINARY(1024) NOT NULL, MODIFY acquired_at BIGINT NULL")
		db.migrate(t)
	})
}

// TestMigrate_MissingColumn: a table that an older program or a migration tool made.
func TestMigrate_MissingColumn(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		missing := []string{"orphan"}
		if db.name == "postgres" {
			missing = append(missing, "waited")
		}
		for _, column := range missing {
			db.migrate(t)
			db.exec(t, "ALTER TABLE onelane_locks DROP COLUMN "+column)
			refusedByMigrate(t, db, "no column "+column)
			db.exec(t, "DROP TABLE onelane_locks")
		}
	})
}

// TestMigrate_BesideWriters: a process that starts does not wait for an open transaction of another one.
func TestMigrate_BesideWriters(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		if db.name == "sqlite" { // one writer at a time
			return
		}
		db.migrate(t)
		writer, err := db.Begin()
		ok(t, "Begin", err)
		defer writer.Rollback()
		_, err = writer.Exec("INSERT INTO onelane_locks (name, state, owner, token, fence, acquired_at, expires_at) VALUES ('k', 0, 'o', 1, 1, 1, 1)")
		ok(t, "INSERT", err)
		ctx, cancel := context.WithTimeout(t.Context(), check.Patience)
		defer cancel()
		ok(t, "Migrate beside a writer", sqlbackend.Migrate(ctx, db.DB))
	})
}

// TestMigrate_SchemaOfTheConnection: a table of another schema or database is another table.
func TestMigrate_SchemaOfTheConnection(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		if db.name == "sqlite" {
			return
		}
		tenant := db.beside(t, "tenant")
		db.exec(t, "CREATE TABLE onelane_locks (name VARCHAR(255) NOT NULL PRIMARY KEY)")
		tenant.migrate(t)
		_, err := locker(t, at(tenant.DB)).Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		db.exec(t, "DROP TABLE onelane_locks")
		db.migrate(t)
		_, err = locker(t, at(db.DB)).Acquire(t.Context(), "k")
		ok(t, "Acquire of the same key in another schema", err)
	})
}

func TestMigrate_NamedIfTableIsMissing(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		_, err := locker(t, at(db.DB), core.WithOutageWait(0)).TryAcquire(t.Context(), "k")
		_, purge := sqlbackend.Purge(t.Context(), db.DB, time.Hour)
		for _, err := range []error{err, purge} {
			if err == nil || !strings.Contains(err.Error(), "onelane_locks, which sqlbackend.Migrate makes") {
				t.Errorf("%v does not say who makes it", err)
			}
		}
	})
}

package gormlock_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// tables describes the kit's tables as the database does.
func tables(t testing.TB, db *gorm.DB) []string {
	t.Helper()
	var all []string
	for _, table := range []string{"onelane_fences", "onelane_once"} {
		columns, err := db.Migrator().ColumnTypes(table)
		ok(t, "ColumnTypes", err)
		for _, c := range columns {
			primary, _ := c.PrimaryKey()
			nullable, _ := c.Nullable()
			length, _ := c.Length()
			all = append(all, fmt.Sprintf("%s.%s %s(%d) primary=%v null=%v", table, c.Name(), strings.ToLower(c.DatabaseTypeName()), length, primary, nullable))
		}
		if table == "onelane_once" && !db.Migrator().HasIndex(table, "onelane_once_created_at") {
			t.Errorf("%s has no index", table)
		}
	}
	return all
}

// TestMigrate_MakesWhatIsDocumented runs the files that are there for those who migrate otherwise, statement by
// statement, and wants the same tables as Migrate makes.
func TestMigrate_MakesWhatIsDocumented(t *testing.T) {
	t.Parallel()
	made := make(map[string][]string)
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		made[db.Name()] = tables(t, db)
		for _, key := range []string{"onelane_fences.name", "onelane_once.name"} {
			if !slices.ContainsFunc(made[db.Name()], func(c string) bool {
				return strings.HasPrefix(c, key+" ") && strings.Contains(c, "primary=true") &&
					(strings.Contains(c, "blob") || strings.Contains(c, "bytea") || strings.Contains(c, "varbinary"))
			}) {
				t.Errorf("%s is not a binary primary key: %q", key, made[db.Name()])
			}
		}
	})
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		file, err := os.ReadFile("schema/" + db.Name() + ".sql")
		ok(t, "ReadFile", err)
		for line := range strings.Lines(string(file)) {
			if strings.HasPrefix(line, "--") {
				file = []byte(strings.Replace(string(file), line, "", 1))
			}
		}
		for statement := range strings.SplitSeq(string(file), ";") {
			if statement = strings.TrimSpace(statement); statement != "" {
				ok(t, statement, db.Exec(statement).Error)
			}
		}
		if got := tables(t, db); !slices.Equal(got, made[db.Name()]) || len(got) != 9 {
			t.Errorf("%d columns: %q, Migrate made %q", len(got), got, made[db.Name()])
		}
		ok(t, "Migrate on top", gormlock.Migrate(db))
	})
}

// TestMigrate_AtOnce: several processes start, each migrates.
func TestMigrate_AtOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if err := gormlock.Migrate(db.WithContext(gormlock.WithGuard(t.Context(), "k"))); err != nil { // guards do not matter
					t.Errorf("Migrate: %v", err)
				}
			})
		}
		all.Wait()
		tables(t, db)
	})
}

func TestMigrate_Refusals(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		want(t, "in a transaction", db.Transaction(gormlock.Migrate), gorm.ErrInvalidTransaction)
		ok(t, "CREATE", db.Exec("CREATE TABLE onelane_fences (name VARCHAR(255) NOT NULL PRIMARY KEY)").Error)
		if err := gormlock.Migrate(db); err == nil || !strings.Contains(err.Error(), "onelane_fences") {
			t.Errorf("a key that is text: got %v", err)
		}
		ok(t, "DROP", db.Exec("DROP TABLE onelane_fences").Error)
		ok(t, "CREATE", db.Exec("CREATE TABLE onelane_fences (id INTEGER NOT NULL PRIMARY KEY)").Error)
		if err := gormlock.Migrate(db); err == nil || !strings.Contains(err.Error(), "onelane_fences") {
			t.Errorf("no key: got %v", err)
		}
	})
	want(t, "another database", gormlock.Migrate(&gorm.DB{Config: &gorm.Config{}}), gormlock.ErrDialect)
}

// TestMigrate_KeyOfTwoColumns: as partitions want it; a name could come twice then, which MySQL does not refuse.
func TestMigrate_KeyOfTwoColumns(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		binary := map[string]string{"mysql": "VARBINARY(512)", "postgres": "BYTEA"}[db.Name()]
		if binary == "" { // SQLite shows one of the columns; its upsert is an error then
			return
		}
		ok(t, "CREATE", db.Exec("CREATE TABLE onelane_once (name "+binary+" NOT NULL, created_at BIGINT NOT NULL, PRIMARY KEY (name, created_at))").Error)
		if err := gormlock.Migrate(db); err == nil || !strings.Contains(err.Error(), "onelane_once") {
			t.Errorf("got %v", err)
		}
	})
}

func TestMigrate_IsNamedWhereATableIsMissing(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		for table, use := range map[string]func() error{
			"onelane_once": func() error {
				_, err := gormlock.Once(t.Context(), db, "k", func(*gorm.DB) (int, error) { return 0, nil })
				return err
			},
			"onelane_fences": func() error {
				return gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return tx.First(&Stock{}).Error }, gormlock.Fenced())
			},
			"table onelane_once": func() error {
				_, err := gormlock.Purge(t.Context(), db, time.Hour)
				return err
			},
		} {
			if err := use(); err == nil || !strings.Contains(err.Error(), table+", which gormlock.Migrate makes") {
				t.Errorf("%s: %v does not say who makes it", table, err)
			}
		}
	})
}

// TestMigrate_TooShort: MySQL refuses what does not fit into a column, or cuts it off, as the server is set.
func TestMigrate_TooShort(t *testing.T) {
	t.Parallel()
	changes := map[string]string{
		"onelane_fences: name":        "ALTER TABLE onelane_fences MODIFY name VARBINARY(511) NOT NULL",
		"onelane_fences: owner":       "ALTER TABLE onelane_fences MODIFY owner VARBINARY(255) NOT NULL",
		"onelane_once: name":          "ALTER TABLE onelane_once MODIFY name VARBINARY(255) NOT NULL",
		"onelane_once: attempt":       "ALTER TABLE onelane_once MODIFY attempt VARBINARY(16) NOT NULL",
		"onelane_once: fingerprint":   "ALTER TABLE onelane_once MODIFY fingerprint VARBINARY(32) NULL",
		"onelane_once: result":        "ALTER TABLE onelane_once MODIFY result BLOB NULL",
		"onelane_once: primary key":   "ALTER TABLE onelane_once DROP PRIMARY KEY, ADD PRIMARY KEY (name(255))",
		"onelane_fences: column name": "ALTER TABLE onelane_fences DROP PRIMARY KEY, MODIFY name VARCHAR(512) NOT NULL, ADD PRIMARY KEY (name)",
	}
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" {
			return // the others' binary columns have no length
		}
		for what, change := range changes {
			table, column, _ := strings.Cut(what, ": ")
			ok(t, "Migrate", gormlock.Migrate(db))
			ok(t, what, db.Exec(change).Error)
			if err := gormlock.Migrate(db); err == nil || !strings.Contains(err.Error(), table) || !strings.Contains(err.Error(), column) {
				t.Errorf("%s: %v", what, err)
			}
			ok(t, "DROP", db.Exec("DROP TABLE "+table).Error)
		}
		ok(t, "Migrate", gormlock.Migrate(db))
		ok(t, "wider", db.Exec("ALTER TABLE onelane_once MODIFY name VARBINARY(1024) NOT NULL, MODIFY attempt LONGBLOB NOT NULL").Error)
		ok(t, "wider columns", gormlock.Migrate(db))
	})
}

// TestMigrate_BesideWriters: a process that starts does not wait for an open Once of another one.
// All other calls of Once would wait behind it.
func TestMigrate_BesideWriters(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" { // one writer at a time
			return
		}
		ok(t, "Migrate", gormlock.Migrate(db))
		writer := db.Begin()
		ok(t, "Begin", writer.Error)
		defer writer.Rollback()
		ok(t, "INSERT", writer.Exec("INSERT INTO onelane_once (name, attempt, created_at) VALUES ('k', 'a', 1)").Error)
		ctx, cancel := context.WithTimeout(t.Context(), check.Patience)
		defer cancel()
		ok(t, "Migrate beside a writer", gormlock.Migrate(db.WithContext(ctx)))
	})
}

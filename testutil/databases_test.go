package testutil_test

import (
	"bytes"
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/gorm"

	"github.com/onelane/onelane/testutil"
)

type row struct {
	ID int
	N  int
}

func TestDatabases(t *testing.T) {
	for name, opts := range map[string][]gorm.Option{
		"plain":    nil,
		"prepared": {&gorm.Config{PrepareStmt: true}},
	} {
		t.Run(name, func(t *testing.T) {
			var ran []string
			testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
				ran = append(ran, db.Name())
				if db.PrepareStmt != (opts != nil) {
					t.Errorf("PrepareStmt is %v", db.PrepareStmt)
				}
				if db.Migrator().HasTable(&row{}) {
					t.Error("the database is not new")
				}
				if err := db.AutoMigrate(&row{}); err != nil {
					t.Fatal(err)
				}
				if err := db.Create(&row{ID: 1}).Error; err != nil {
					t.Fatal(err)
				}
				writeAtOnce(t, db)
			}, opts...)
			t.Logf("ran on %v", ran)
			if len(ran) == 0 || ran[0] != "sqlite" {
				t.Errorf("ran on %v, want sqlite at least", ran)
			}
		})
	}
}

// A second subtest of a name has "#01" in the name of its folder.
func TestDatabases_TwiceInOneTest(t *testing.T) {
	for range 2 {
		testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
			if db.Migrator().HasTable(&row{}) {
				t.Error("the database is not new")
			}
			if err := db.AutoMigrate(&row{}); err != nil {
				t.Fatal(err)
			}
			var file string
			if db.Name() != "sqlite" {
				return
			}
			if err := db.Raw("SELECT file FROM pragma_database_list").Scan(&file).Error; err != nil {
				t.Fatal(err)
			}
			if filepath.Base(file) != "test.db" {
				t.Errorf("the database is in %q, not in the test's folder", file)
			}
		})
	}
}

// writeAtOnce adds from many goroutines, in transactions that read what they write.
func writeAtOnce(t *testing.T, db *gorm.DB) {
	t.Helper()
	const writers, each = 8, 10
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range each {
				err := db.Transaction(func(tx *gorm.DB) error {
					if err := tx.Model(&row{}).Where("id = 1").Update("n", gorm.Expr("n + 1")).Error; err != nil {
						return err
					}
					return tx.First(&row{}, 1).Error
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	var r row
	if err := db.First(&r, 1).Error; err != nil || r.N != writers*each {
		t.Errorf("after %d increments n is %d, %v", writers*each, r.N, err)
	}
}

func TestDatabases_OneTestAtATime(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, outer *gorm.DB) {
		name := outer.Migrator().CurrentDatabase()
		testutil.Databases(t, func(t *testing.T, inner *gorm.DB) {
			if inner.Name() == outer.Name() && inner.Name() != "sqlite" {
				if got := inner.Migrator().CurrentDatabase(); got == name {
					t.Errorf("two tests have database %s", name)
				}
			}
		})
		if outer.Name() != "sqlite" && !strings.HasPrefix(name, "onelane_") {
			t.Errorf("the database is %s", name)
		}
	})
}

// A database that another test used has nothing of what that test did, and nobody who goes on in it.
func TestDatabases_UsedOnesAreEmpty(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, _ *gorm.DB) {}) // creates what is used below
	var used string
	var old *sql.DB
	for range 2 {
		testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
			if db.Name() != "postgres" {
				return
			}
			name := db.Migrator().CurrentDatabase()
			if used == "" {
				used = name
				for _, statement := range []string{
					"CREATE TABLE a (id bigserial PRIMARY KEY)", "CREATE VIEW b AS SELECT 1", "CREATE SCHEMA c",
					"CREATE TABLE c.d (id int)", "CREATE TYPE e AS ENUM ('f')", "CREATE SEQUENCE g",
					"CREATE FUNCTION h() RETURNS int LANGUAGE sql AS 'SELECT 1'",
					"ALTER DATABASE " + name + " SET statement_timeout = '59s'",
				} {
					if err := db.Exec(statement).Error; err != nil {
						t.Fatal(err)
					}
				}
				config, err := pgx.ParseConfig(os.Getenv("ONELANE_POSTGRES_DSN"))
				if err != nil {
					t.Fatal(err)
				}
				config.Database = name
				old = stdlib.OpenDB(*config) // as a process that the test forgot
				if _, err := old.Exec("BEGIN; LOCK TABLE a"); err != nil {
					t.Fatal(err)
				}
				return
			}
			if name != used {
				t.Errorf("database %s, want %s again", name, used)
			}
			const left = `SELECT (SELECT count(*) FROM pg_class WHERE relnamespace >= 16384 OR relnamespace =
				'public'::regnamespace) + (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)
				+ (SELECT count(*) FROM pg_type WHERE typnamespace = 'public'::regnamespace)
				+ (SELECT count(*) FROM pg_namespace WHERE nspname = 'c') + (SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend')`
			var n int
			var timeout string
			err := db.Raw(left).Scan(&n).Error
			// A backend ends a moment after the call that ends it.
			for end := time.Now().Add(10 * time.Second); n != 0 && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
				err = db.Raw(left).Scan(&n).Error
			}
			if err != nil || n != 0 {
				t.Errorf("%d things are left, %v", n, err)
			}
			if err := db.Raw("SHOW statement_timeout").Scan(&timeout).Error; err != nil || timeout != "0" {
				t.Errorf("the statement time-out is %s, %v", timeout, err)
			}
		})
	}
	if old != nil {
		_ = old.Close()
	}
}

// The databases are gone when the tests that used them have ended.
func TestDatabases_DroppedAtTheEnd(t *testing.T) {
	left := map[string]string{}
	t.Run("user", func(t *testing.T) {
		testutil.Databases(t, func(t *testing.T, db *gorm.DB) { left[db.Name()] = db.Migrator().CurrentDatabase() })
	})
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" {
			return
		}
		var n int64
		query := "SELECT count(*) FROM information_schema.schemata WHERE schema_name = ?"
		if db.Name() == "postgres" {
			query = "SELECT count(*) FROM pg_database WHERE datname = ?"
		}
		if err := db.Raw(query, left[db.Name()]).Scan(&n).Error; err != nil || n != 0 {
			t.Errorf("database %s: found %d, %v", left[db.Name()], n, err)
		}
	})
}

// The subtests of a test that fails would fail it too, so it runs in a separate process.
func TestDatabasesWhereThereAreNone(t *testing.T) {
	if os.Getenv("ONELANE_TEST_DATABASES") != "" {
		testutil.Databases(t, func(*testing.T, *gorm.DB) {})
		return
	}
	for _, c := range []struct{ name, required, says string }{
		{"required", "1", "ONELANE_POSTGRES_DSN is not set: set it to the DSN"},
		{"not required", "", "these tests run without PostgreSQL"},
	} {
		withoutServers(t, c.required)
		t.Setenv("ONELANE_TEST_DATABASES", "1")
		cmd := exec.Command(os.Args[0], "-test.run=^TestDatabasesWhereThereAreNone$", "-test.count=2")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if (err != nil) != (c.required != "") {
			t.Errorf("%s: %v\n%s", c.name, err, out)
		}
		if said := string(out) + stderr.String(); !strings.Contains(said, c.says) || !strings.Contains(said, "testutil/servers") {
			t.Errorf("%s: it does not say %q: %s", c.name, c.says, said)
		}
		if n := strings.Count(stderr.String(), c.says); c.required == "" && n != 1 {
			t.Errorf("it says %d times on standard error, want once: %s", n, &stderr)
		}
	}
}

// noPlugin is a GORM plugin that does nothing.
type noPlugin struct{}

func (noPlugin) Name() string              { return "none" }
func (noPlugin) Initialize(*gorm.DB) error { return nil }

// One *gorm.Config for all databases is no plugin map for all of them.
func TestDatabases_APluginCanBeUsedOnEach(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if err := db.Use(noPlugin{}); err != nil {
			t.Error(err)
		}
	}, &gorm.Config{PrepareStmt: true})
}

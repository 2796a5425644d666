package testutil

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// idleConns are the connections that a test's pool keeps. A new one costs PostgreSQL a process.
const idleConns = 16

// A databasePool creates databases on one server and drops them. It hands out a database again if
// it can empty it. PostgreSQL creates a database by copying a whole one, which costs more than most
// tests.
type databasePool struct {
	drop  string // a statement; %s is the database
	empty string // statements that remove everything; none if a new database is as cheap

	mu    sync.Mutex
	users int // tests that may still ask for a database
	idle  []database
}

var mysqlDatabases = &databasePool{drop: "DROP DATABASE %s"}

var postgresDatabases = &databasePool{
	drop: "DROP DATABASE %s WITH (FORCE)",
	// Connections that a test left open, such as those of a killed process, end first: their locks
	// would be in the way.
	empty: `DO $$ DECLARE name text; BEGIN
		PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid();
		EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
		FOR name IN SELECT nspname FROM pg_namespace
			WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema' LOOP
			EXECUTE format('DROP SCHEMA %I CASCADE', name);
		END LOOP;
		CREATE SCHEMA public;
		GRANT USAGE ON SCHEMA public TO PUBLIC;
	END $$`,
}

// A database is one that we have created. open opens a connection pool to a database of its server;
// "" is the one that the DSN names.
type database struct {
	name string
	open func(name string) (*sql.DB, error)
}

func (d database) execute(in, statement string) error {
	db, err := d.open(in)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err = db.ExecContext(ctx, statement)
	return err
}

func (p *databasePool) remove(d database) error { return d.execute("", fmt.Sprintf(p.drop, d.name)) }

// use keeps databases for later tests until t ends, the last one that uses them.
func (p *databasePool) use(t testing.TB) {
	p.mu.Lock()
	p.users++
	p.mu.Unlock()
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.users--; p.users > 0 {
			return
		}
		for _, d := range p.idle {
			if err := p.remove(d); err != nil {
				t.Errorf("testutil: dropping a database that tests have used: %v", err)
			}
		}
		p.idle = nil
	})
}

// database returns a connection pool for an empty database that t alone has until it ends.
func (p *databasePool) database(t *testing.T, open func(name string) (*sql.DB, error)) *sql.DB {
	t.Helper()
	d, err := p.take(open)
	if err != nil {
		t.Fatalf("testutil: creating a database for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := p.giveBack(d); err != nil {
			t.Errorf("testutil: emptying the test's database (is a transaction still open?): %v", err)
		}
	})
	db, err := open(d.name)
	if err != nil {
		t.Fatalf("testutil: %v", err)
	}
	db.SetMaxIdleConns(idleConns)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func (p *databasePool) take(open func(name string) (*sql.DB, error)) (database, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		d := p.idle[last]
		p.idle = p.idle[:last]
		return d, nil
	}
	d := database{"onelane_" + strings.ToLower(rand.Text()), open}
	return d, d.execute("", "CREATE DATABASE "+d.name)
}

func (p *databasePool) giveBack(d database) error {
	if p.empty == "" {
		return p.remove(d)
	}
	if err := d.execute(d.name, p.empty); err != nil {
		return errors.Join(err, p.remove(d))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, d)
	return nil
}

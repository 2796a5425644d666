package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/onelane/onelane/testutil/internal/server"
)

// database is a server that is sold from.
type database struct {
	kind    server.Kind
	durable bool // each COMMIT is on disk before it is answered, as in production; otherwise nothing is synced
}

// String is for names of scenarios.
func (d database) String() string {
	if d.durable {
		return string(d.kind) + "-durable"
	}
	return string(d.kind)
}

// databases says how each is started, and asked what COMMIT waits for.
var databases = map[server.Kind]struct {
	product, env string
	start        func(ctx context.Context, args ...string) (*server.Server, error)
	durable      []string // arguments
	driver       string
	settings     string // a query with one row of text
}{
	server.MySQL: {
		product: "MariaDB", env: server.EnvMySQL, start: server.StartMariaDB,
		durable: []string{"--innodb-flush-log-at-trx-commit=1", "--log-bin=bin", "--sync-binlog=1"},
		driver:  "mysql",
		settings: "SELECT CONCAT('innodb_flush_log_at_trx_commit=', @@innodb_flush_log_at_trx_commit, ', log_bin=', @@log_bin, " +
			"', sync_binlog=', @@sync_binlog)",
	},
	server.Postgres: {
		product: "PostgreSQL", env: server.EnvPostgres, start: server.StartPostgres,
		durable: []string{"-c", "fsync=on", "-c", "full_page_writes=on"},
		driver:  "pgx",
		settings: "SELECT string_agg(name || '=' || setting, ', ' ORDER BY name) FROM pg_settings " +
			"WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes')",
	},
}

// durability says what a COMMIT waits for, in the words of the server, and what that costs on this disk.
func (b *bench) durability(ctx context.Context, d database) (string, error) {
	dsn, err := b.database(d)
	if err != nil {
		return "", err
	}
	how := databases[d.kind]
	db, err := sql.Open(how.driver, dsn)
	if err != nil {
		return "", err
	}
	defer db.Close()
	var settings string
	if err := db.QueryRowContext(ctx, how.settings).Scan(&settings); err != nil {
		return "", fmt.Errorf("asking %s for its durability: %w", how.product, err)
	}
	sync, err := syncTime()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("COMMIT: %s. Here a file of the temporary folder is synced in %v (median).", settings, sync.Round(10*time.Microsecond)), nil
}

// syncTime is how long a small write and fsync take where the servers have their data.
func syncTime() (_ time.Duration, err error) {
	f, err := os.CreateTemp("", "onelane-sync-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	var all []float64
	for range 101 {
		began := time.Now()
		if _, err := f.WriteString(strings.Repeat("x", 512)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		all = append(all, float64(time.Since(began)))
	}
	return time.Duration(median(sorted(all))), nil
}

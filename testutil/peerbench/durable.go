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
	// slower is how much longer than here each sync takes, emulated; 0 where it is not durable.
	slower time.Duration
}

// String is for names of scenarios.
func (d database) String() string {
	switch {
	case d.slower > 0:
		return fmt.Sprintf("%s-disk-%v", d.kind, d.slower)
	case d.durable:
		return string(d.kind) + "-durable"
	}
	return string(d.kind)
}

// databases says how each is started, and asked what COMMIT waits for.
var databases = map[server.Kind]struct {
	product, env string
	durable      []string // arguments
	syncs        int      // that a COMMIT waits for then, one after the other
	driver       string
	settings     string // a query with one row of text
	synced       string // one for what a sync took, in ms by the server's own clock; "" where it has none
}{
	server.MySQL: {
		product: "MariaDB", env: server.EnvMySQL,
		durable: []string{"--innodb-flush-log-at-trx-commit=1", "--log-bin=bin", "--sync-binlog=1"},
		syncs:   2, // InnoDB's log and the binary log
		driver:  "mysql",
		settings: "SELECT CONCAT('innodb_flush_log_at_trx_commit=', @@innodb_flush_log_at_trx_commit, ', log_bin=', @@log_bin, " +
			"', sync_binlog=', @@sync_binlog)",
	},
	server.Postgres: {
		product: "PostgreSQL", env: server.EnvPostgres,
		durable: []string{"-c", "fsync=on", "-c", "full_page_writes=on", "-c", "track_wal_io_timing=on"},
		syncs:   1,
		driver:  "pgx",
		settings: "SELECT string_agg(name || '=' || setting, ', ' ORDER BY name) FROM pg_settings " +
			"WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes')",
		// By way of JSON, as PostgreSQL 18 has the columns elsewhere.
		synced: "SELECT round(((to_jsonb(w)->>'wal_sync_time')::numeric / nullif((to_jsonb(w)->>'wal_sync')::numeric, 0)), 2)::text FROM pg_stat_wal w",
	},
}

// durability says what a COMMIT waits for, in the words of the server, and what that costs here.
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
	db.SetMaxOpenConns(1)
	var settings string
	if err := db.QueryRowContext(ctx, how.settings).Scan(&settings); err != nil {
		return "", fmt.Errorf("asking %s for its durability: %w", how.product, err)
	}
	trip, commit, err := idle(ctx, db)
	if err != nil {
		return "", fmt.Errorf("timing a COMMIT of %s: %w", how.product, err)
	}
	disk, err := syncTime()
	if err != nil {
		return "", err
	}
	says := fmt.Sprintf("COMMIT: %s. On the idle server a round trip takes %v, the COMMIT of one row %v; a file of the temporary folder is synced in %v (medians).",
		settings, trip, commit, disk)
	if d.slower == 0 {
		return says, nil
	}
	if commit < time.Duration(how.syncs)*d.slower {
		return "", fmt.Errorf("each of %d syncs of %s was to take %v longer, and a COMMIT takes %v in all: they do not go through what %s names", how.syncs, how.product, d.slower, commit, preload)
	}
	says += fmt.Sprintf(" **The disk is emulated**: the server sleeps %v before each fsync and fdatasync, of which a COMMIT waits for %d.", d.slower, how.syncs)
	var took sql.NullString
	if how.synced != "" {
		if err := db.QueryRowContext(ctx, how.synced).Scan(&took); err != nil {
			return "", fmt.Errorf("asking %s how long it syncs: %w", how.product, err)
		}
	}
	if took.Valid {
		says += fmt.Sprintf(" By its own clock a sync took %s ms on average.", took.String)
	}
	return says, nil
}

// idle times an empty round trip, and the COMMIT of one row.
func idle(ctx context.Context, db *sql.DB) (trip, commit time.Duration, err error) {
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS idle (id INT)"); err != nil {
		return 0, 0, err
	}
	if trip, err = medianTime(func() error { return db.PingContext(ctx) }); err != nil {
		return 0, 0, err
	}
	var tx *sql.Tx
	commit, err = medianTime(func() error { return tx.Commit() }, func() (err error) {
		if tx, err = db.BeginTx(ctx, nil); err == nil {
			_, err = tx.ExecContext(ctx, "INSERT INTO idle VALUES (1)")
		}
		return err
	})
	return trip, commit, err
}

// syncTime is how long a small write and fsync take where the servers have their data.
func syncTime() (_ time.Duration, err error) {
	f, err := os.CreateTemp("", "onelane-sync-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	return medianTime(func() error {
		_, err := f.WriteString(strings.Repeat("x", 512))
		return errors.Join(err, f.Sync())
	})
}

// medianTime is that of op, without what comes before it each time.
func medianTime(op func() error, before ...func() error) (time.Duration, error) {
	var all []float64
	for range 101 {
		for _, prepare := range before {
			if err := prepare(); err != nil {
				return 0, err
			}
		}
		began := time.Now()
		if err := op(); err != nil {
			return 0, err
		}
		all = append(all, float64(time.Since(began)))
	}
	return time.Duration(median(sorted(all))).Round(10 * time.Microsecond), nil
}

package stock_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock/stock"
)

// TestSale_Pooler: the protocols that PgBouncer's transaction pooling needs, straight to the server,
// and through a PgBouncer if ONELANE_PGBOUNCER has the path of one.
func TestSale_Pooler(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "postgres" {
			return
		}
		cfg, err := pgx.ParseConfig(postgresDSN())
		ok(t, "ParseConfig", err)
		ok(t, "name", db.Raw("SELECT current_database()").Scan(&cfg.Database).Error)
		if binary := os.Getenv("ONELANE_PGBOUNCER"); binary != "" {
			cfg.Port = startPgBouncer(t, binary, cfg)
		}
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
			cfg := cfg.Copy()
			cfg.DefaultQueryExecMode = mode
			pool := stdlib.OpenDB(*cfg)
			defer pool.Close()
			other, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard})
			ok(t, "Open", err)
			fresh(t, other, 1<<40, &Order{})
			sales := []*stock.Sale[Stock, Order]{newSale[Order](t, other, unique), newSale[Order](t, other, unique)}
			sold, repeats := concurrently(t, sales, 16, 10)
			if sold == 0 || repeats == 0 {
				t.Errorf("%v: sold %d, repeats %d", mode, sold, repeats)
			}
			wantBooks[Order](t, db, 1<<40, sold)
		}
	})
}

// startPgBouncer starts a PgBouncer with two connections to the server, so that transactions change
// them all the time.
func startPgBouncer(t *testing.T, binary string, server *pgx.ConnConfig) (port uint16) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, "Listen", err)
	port = uint16(free.Addr().(*net.TCPAddr).Port)
	ok(t, "Close", free.Close())
	ini := filepath.Join(t.TempDir(), "pgbouncer.ini")
	ok(t, "WriteFile", os.WriteFile(ini, fmt.Appendf(nil, `[databases]
* = host=%s port=%d user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
ignore_startup_parameters = extra_float_digits
`, server.Host, server.Port, server.User, port), 0o644))
	args := []string{ini}
	if os.Geteuid() == 0 { // which PgBouncer refuses
		args = append([]string{"-u", "nobody"}, args...)
	}
	c := exec.Command(binary, args...)
	ok(t, "Start", c.Start())
	t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	eventually(t, "PgBouncer answers", func() bool {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return port
}

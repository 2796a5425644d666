package server

import (
	"context"
	"database/sql"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/go-sql-driver/mysql"
)

// StartMariaDB starts a MariaDB, or a MySQL, with a user root without a password. Nothing is synced
// to disk; what matters for isolation is as the server's defaults have it. The args, such as
// --sync-binlog=1, win over ours.
func StartMariaDB(ctx context.Context, args ...string) (*Server, error) {
	return startMariaDB(ctx, nil, args)
}

func startMariaDB(ctx context.Context, env, args []string) (*Server, error) {
	binary, err := Find(MySQL)
	if err != nil {
		return nil, err
	}
	install, err := mariaInstall(binary)
	if err != nil {
		return nil, err
	}
	acc, err := accountFor(MySQL, "mysql", "nobody")
	if err != nil {
		return nil, err
	}
	common := func(dir string) []string {
		return []string{"--no-defaults", "--datadir=" + filepath.Join(dir, "data"), "--tmpdir=" + dir}
	}
	return start(ctx, spec{
		kind:    MySQL,
		env:     env,
		account: acc, // not --user: a process that changes its user by itself no longer ends with its parent
		end:     syscall.SIGKILL,
		prepare: func(ctx context.Context, dir string) error {
			return run(ctx, acc, dir, install[0], slices.Concat(common(dir), install[1:])...)
		},
		command: func(dir string, port int) *exec.Cmd {
			return exec.Command(binary, slices.Concat(common(dir), []string{
				"--loose-mysqlx=OFF",        // MySQL's other port
				"--secure-file-priv=" + dir, // the default folder is made by a package's installation
				"--bind-address=127.0.0.1", "--port=" + strconv.Itoa(port),
				"--socket=" + mariaSocket(dir), "--pid-file=" + filepath.Join(dir, "pid"),
				"--max-connections=500", "--skip-name-resolve", "--skip-log-bin",
				"--character-set-server=utf8mb4", "--collation-server=utf8mb4_general_ci",
				"--innodb-flush-log-at-trx-commit=0"}, args)...)
		},
		ready: mariaReady,
		dsn: func(port int) string {
			return fmt.Sprintf("root@tcp(127.0.0.1:%d)/%s?parseTime=true", port, database)
		},
	})
}

// mariaInstall is the command that makes the system tables: the server itself for MySQL.
func mariaInstall(binary string) ([]string, error) {
	if filepath.Base(binary) == "mysqld" {
		return []string{binary, "--initialize-insecure"}, nil
	}
	// Beside mariadbd in Homebrew, in /usr/bin while that is in /usr/sbin on Debian.
	install, err := find("mariadb-install-db", []string{beside(binary), filepath.Join(beside(binary), "..", "bin")}, MySQL)
	if err != nil {
		return nil, fmt.Errorf("server: %s is here, mariadb-install-db is not: install MariaDB completely: %w", binary, err)
	}
	return []string{install, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"}, nil
}

// database is the name of the database that the DSNs name.
const database = "onelane"

func mariaSocket(dir string) string { return filepath.Join(dir, "s") }

// mariaReady goes through the socket in our own folder, which opens after the port is bound: so it
// is our own server.
func mariaReady(ctx context.Context, s *Server, _ int) error {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr = "root", "unix", mariaSocket(s.dir)
	cfg.Logger = &mysql.NopLogger{} // it would report every try while the server starts
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	for _, statement := range []string{
		"CREATE USER IF NOT EXISTS root@'127.0.0.1'", // MySQL makes one for its socket alone
		"GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION",
		"CREATE DATABASE IF NOT EXISTS " + database,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

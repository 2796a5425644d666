package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// StartPostgres starts a PostgreSQL that trusts every user on loopback and syncs nothing to disk.
// The args, such as -c fsync=on, win over ours.
func StartPostgres(ctx context.Context, args ...string) (*Server, error) {
	return startPostgres(ctx, nil, args)
}

func startPostgres(ctx context.Context, env, args []string) (*Server, error) {
	binary, err := Find(Postgres)
	if err != nil {
		return nil, err
	}
	acc, err := accountFor(Postgres, "postgres", "nobody")
	if err != nil {
		return nil, err
	}
	return start(ctx, spec{
		kind:    Postgres,
		env:     env,
		account: acc,
		end:     syscall.SIGQUIT, // "immediate shutdown"; SIGKILL would leave its shared memory behind
		prepare: func(ctx context.Context, dir string) error {
			return run(ctx, acc, dir, filepath.Join(beside(binary), "initdb"), "-D", filepath.Join(dir, "data"),
				"-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
		},
		command: func(dir string, port int) *exec.Cmd {
			cmd := exec.Command(binary, append([]string{"-D", filepath.Join(dir, "data"), "-p", strconv.Itoa(port), "-F",
				"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=" + dir,
				"-c", "full_page_writes=off", "-c", "max_connections=300", "-c", "autovacuum=off"}, args...)...)
			cmd.Env = append(os.Environ(), "LC_ALL=C") // its messages are read
			return cmd
		},
		ready: postgresReady,
		dsn: func(port int) string {
			return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", port, database)
		},
	})
}

// postgresReady goes through the socket in our own folder, which opens after the port is bound: so
// it is our own server.
func postgresReady(ctx context.Context, s *Server, _ int) error {
	conn, err := pgx.Connect(ctx, fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", s.dir, s.port))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "CREATE DATABASE "+database)
	var known *pgconn.PgError
	if errors.As(err, &known) && known.Code == "42P04" { // it exists
		return nil
	}
	return err
}

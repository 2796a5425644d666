package server

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/internal/check"
)

func TestMain(m *testing.M) {
	InMemory = true
	check.Main(m)
}

// each runs fn for every kind that is installed. A missing one fails where servers are required.
func each(t *testing.T, fn func(t *testing.T, kind Kind)) {
	for _, kind := range Kinds {
		t.Run(string(kind), func(t *testing.T) {
			_, err := Find(kind)
			switch {
			case err == nil:
				t.Parallel()
				fn(t, kind)
			case Required():
				t.Fatal(err)
			default:
				t.Log(err)
			}
		})
	}
}

func begin(t *testing.T, kind Kind) *Server {
	t.Helper()
	began := time.Now()
	s, err := StartWith(t.Context(), kind, []string{"ONELANE_TEST_OWN=yes"}, databaseArguments[kind].args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	t.Logf("%s answered after %v", kind, time.Since(began).Round(time.Millisecond))
	return s
}

var drivers = map[Kind]string{MySQL: "mysql", Postgres: "pgx"}

// ask talks to the server as a user of its address would.
func ask(kind Kind, s *Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if kind == Redis {
		client := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
		defer client.Close()
		return client.Ping(ctx).Err()
	}
	if kind == Etcd {
		var health struct{ Health string }
		if err := askEtcd(ctx, http.DefaultClient, http.MethodGet, "http://"+s.Addr+"/health", &health); err != nil {
			return err
		}
		if health.Health != "true" {
			return errors.New("it has no leader")
		}
		return nil
	}
	if kind == ZooKeeper {
		status, err := AskZooKeeper(ctx, s.Addr, "srvr")
		if err == nil && !strings.Contains(status, "Mode: standalone") {
			err = errors.New(status)
		}
		return err
	}
	db, err := sql.Open(drivers[kind], s.DSN)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS t (id INT)")
	return err
}

// mustAnswer asks a server that runs. On a busy machine it may miss the time-out.
func mustAnswer(t *testing.T, kind Kind, s *Server) {
	t.Helper()
	err := ask(kind, s)
	for try := 0; err != nil && try < 10; try++ {
		time.Sleep(100 * time.Millisecond)
		err = ask(kind, s)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// onLinux checks what only Linux shows of a server that runs.
var onLinux = func(*testing.T, Kind, *Server) {}

// A server starts with its arguments, is killed, restarts and stops. Databases take a second to
// start: they do it once.
func TestServer_Life(t *testing.T) {
	each(t, func(t *testing.T, kind Kind) {
		s := begin(t, kind)
		mustAnswer(t, kind, s)
		if s.Pid() == 0 {
			t.Fatal("a running server has no pid")
		}
		onLinux(t, kind, s)
		argumentsWin(t, kind, s)
		if kind == MySQL {
			needsNoFolder(t, s)
		}
		restartOnATakenPort(t, s)
		mustAnswer(t, kind, s)
		onLinux(t, kind, s)
		s.Stop()
		s.Stop()
		if s.Pid() != 0 {
			t.Error("a stopped server has a pid")
		}
		if err := ask(kind, s); err == nil {
			t.Error("the server answers after Stop")
		}
		if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its folder is still there: %v", err)
		}
		if err := s.Restart(t.Context()); err == nil || !strings.Contains(err.Error(), "start a new one") {
			t.Errorf("Restart after Stop: %v", err)
		}
		if err := s.Pause(); err == nil {
			t.Error("Pause after Stop gave no error")
		}
	})
}

// restartOnATakenPort kills a server. Somebody else may take its port for a moment.
func restartOnATakenPort(t *testing.T, s *Server) {
	t.Helper()
	s.Kill()
	other, err := net.Listen("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.launch(t.Context()); !errors.Is(err, errPortTaken) {
		t.Fatalf("started on a taken port: %v, want %v", err, errPortTaken)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestRedisArgumentsWin(t *testing.T) {
	if _, err := Find(Redis); err != nil {
		if Required() {
			t.Fatal(err)
		}
		t.Log(err)
		return
	}
	s, err := StartRedis(t.Context(), "--appendonly", "yes")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	client := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer client.Close()
	got, err := client.ConfigGet(t.Context(), "appendonly").Result()
	if err != nil || got["appendonly"] != "yes" {
		t.Errorf("appendonly is %v, %v", got, err)
	}
	if err := client.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v, err := client.Get(t.Context(), "k").Result(); err != nil || v != "v" {
		t.Errorf("after a restart with an append-only file the key is %q, %v", v, err)
	}

	_, err = StartRedis(t.Context(), "--no-such-option", "1")
	if err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("a bad option gives %v, want Redis's own words", err)
	}
}

// databaseArguments contradict our defaults. The query asks whether the arguments won.
var databaseArguments = map[Kind]struct {
	args []string
	ask  string
}{
	MySQL: {[]string{"--log-bin=bin", "--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1"},
		"SELECT @@log_bin = 1 AND @@sync_binlog = 1 AND @@innodb_flush_log_at_trx_commit = 1"},
	Postgres: {[]string{"-c", "fsync=on", "-c", "full_page_writes=on"},
		"SELECT count(*) = 2 FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'on'"},
}

// argumentsWin checks that a database has its arguments.
func argumentsWin(t *testing.T, kind Kind, s *Server) {
	t.Helper()
	c, isDatabase := databaseArguments[kind]
	if !isDatabase {
		return
	}
	db, err := sql.Open(drivers[kind], s.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var so bool
	if err := db.QueryRowContext(t.Context(), c.ask).Scan(&so); err != nil || !so {
		t.Errorf("%s with %v: it has them is %v, %v", kind, c.args, so, err)
	}
}

// needsNoFolder: MySQL starts only if the folder of secure_file_priv exists, and a package's
// installation makes the default one. A mysqld that was copied has none.
func needsNoFolder(t *testing.T, s *Server) {
	t.Helper()
	db, err := sql.Open("mysql", s.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var folder string
	err = db.QueryRowContext(t.Context(), "SELECT COALESCE(@@secure_file_priv, '')").Scan(&folder)
	if err != nil || filepath.Clean(folder) != s.dir {
		t.Errorf("secure_file_priv is %q, %v: want %q", folder, err, s.dir)
	}
}

func TestMissing(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv(EnvRedisServer, "")
	var missing *MissingError
	if _, err := find("onelane-no-such-binary", []string{t.TempDir()}, Redis); !errors.As(err, &missing) {
		t.Fatalf("got %v", err)
	}
	for _, word := range []string{"redis-server was not found", "apt-get install redis-server", "brew install redis", EnvRedisServer} {
		if !strings.Contains(missing.Error(), word) {
			t.Errorf("%q does not say %q", missing, word)
		}
	}
	t.Setenv(EnvRedisServer, "/no/such/file")
	if _, err := Find(Redis); err == nil || !strings.Contains(err.Error(), EnvRedisServer) {
		t.Errorf("a wrong %s gives %v", EnvRedisServer, err)
	}
	if _, err := Start(t.Context(), "oracle"); err == nil || !strings.Contains(err.Error(), "oracle") {
		t.Errorf("an unknown kind gives %v", err)
	}
}

func TestNewestVersionIsFound(t *testing.T) {
	if a, b := version("/usr/lib/postgresql/9/bin/postgres"), version("/usr/lib/postgresql/15/bin/postgres"); a >= b {
		t.Errorf("version 9 counts as %d, 15 as %d", a, b)
	}
}

// MariaDB's script splits a TMPDIR at its space, and the path of a socket has a limit. The account of a database may not
// enter a private folder.
func TestFolder_AwkwardTMPDIR(t *testing.T) {
	base, err := os.MkdirTemp("/tmp", "tmp-") // that of t.TempDir is private
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		mode    os.FileMode
		account *account
		fits    bool
	}{
		{"plain", 0o755, &account{}, true},
		{"own", 0o700, nil, true},
		{"private", 0o700, &account{}, false},
		{"a b", 0o755, nil, false},
		{strings.Repeat("long", 25), 0o755, nil, false},
	} {
		dir := filepath.Join(base, c.name)
		if err := errors.Join(os.Mkdir(dir, c.mode), os.Chmod(dir, c.mode)); err != nil { // whatever the umask
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", dir)
		got, err := folder(c.account)
		if err != nil {
			t.Fatal(err)
		}
		want := "/tmp"
		if c.fits {
			want = dir
		}
		if err := os.Remove(got); err != nil || filepath.Dir(got) != want {
			t.Errorf("TMPDIR %q: the folder is %q, %v", c.name, got, err)
		}
	}
}

func TestEnded_SaysHow(t *testing.T) {
	each(t, func(t *testing.T, kind Kind) {
		if kind != Redis { // the others are no different
			return
		}
		s := begin(t, kind)
		if err := s.Ended(); err != nil {
			t.Errorf("a server that runs: %v", err)
		}
		s.Kill()
		if err := s.Ended(); err == nil || !strings.Contains(err.Error(), string(kind)) || !strings.Contains(err.Error(), "its log ends") {
			t.Errorf("a server that ended: %v", err)
		}
		s.Stop()
		if err := s.Ended(); err != nil {
			t.Errorf("a server that was stopped: %v", err)
		}
	})
}

// Servers and tests run in other folders.
func TestFind_RelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("mine", []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvRedisServer, "./mine")
	if path, err := Find(Redis); err != nil || !filepath.IsAbs(path) {
		t.Errorf("got %q, %v", path, err)
	}
}

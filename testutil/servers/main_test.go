//go:build unix

package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onelane/onelane/testutil/internal/server"
)

const asCommand = "ONELANE_TEST_AS_COMMAND"

// TestMain lets the test binary be the command servers, so that its signals and its exit status are the real ones.
func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Unsetenv(asCommand)
		main()
	}
	os.Exit(m.Run())
}

type result struct {
	status         int
	stdout, stderr string
}

func servers(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	return cmd
}

func output(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// available are the flags that name the servers of this machine: all of them where they are required.
func available(t *testing.T) ([]string, []server.Kind) {
	t.Helper()
	var kinds []server.Kind
	var names []string
	for _, kind := range server.Kinds {
		_, err := server.Find(kind)
		if err != nil && server.Required() {
			t.Fatal(err)
		}
		if err != nil {
			t.Log(err)
			continue
		}
		kinds, names = append(kinds, kind), append(names, string(kind))
	}
	return []string{"-no-install", "-only", strings.Join(names, ",")}, kinds
}

// oneServer are the flags for tests that need any server, and whether this machine has one.
func oneServer(t *testing.T) ([]string, bool) {
	t.Helper()
	_, kinds := available(t)
	if len(kinds) == 0 {
		return nil, false
	}
	return []string{"-no-install", "-only", string(kinds[0])}, true
}

func TestStatusIsPassedOn(t *testing.T) {
	flags, ok := oneServer(t)
	if !ok {
		return
	}
	for _, c := range []struct {
		name    string
		command []string
		want    int
		stderr  string
	}{
		{"success", []string{"sh", "-c", "exit 0"}, 0, ""},
		{"failure", []string{"sh", "-c", "exit 7"}, 7, ""},
		{"a signal", []string{"sh", "-c", "kill -9 $$"}, 128 + 9, ""},
		{"no such command", []string{"/no/such/command"}, 2, "COMMAND did not start"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := output(t, servers(t, append(flags, c.command...)...))
			if got.status != c.want || !strings.Contains(got.stderr, c.stderr) {
				t.Errorf("status %d, want %d; standard error: %q", got.status, c.want, got.stderr)
			}
		})
	}
}

func TestBadUse(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want int
		says string
	}{
		{"no command", nil, 2, "no COMMAND given"},
		{"an unknown server", []string{"-only", "oracle", "true"}, 2, `there is no server "oracle"`},
		{"an unknown flag", []string{"-bad", "true"}, 2, "-bad"},
		{"help", []string{"-h"}, 0, "go run ./testutil/servers go test"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := output(t, servers(t, c.args...))
			if got.status != c.want || !strings.Contains(got.stderr, c.says) || got.stdout != "" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// wantEnvironment checks what a command was given: its arguments, its environment and its input.
func wantEnvironment(t *testing.T, stdout string, kinds []server.Kind) {
	t.Helper()
	lines := strings.Split(stdout, "\n")
	has := func(line string) {
		t.Helper()
		for _, l := range lines {
			if l == line {
				return
			}
		}
		t.Errorf("no line %q in:\n%s", line, stdout)
	}
	value := func(name string) string {
		t.Helper()
		for _, l := range lines {
			if v, ok := strings.CutPrefix(l, name+"="); ok {
				return v
			}
		}
		t.Errorf("no variable %s in:\n%s", name, stdout)
		return ""
	}
	has("$HOME")
	has("input")
	if len(kinds) == len(server.Kinds) {
		has("ONELANE_REQUIRE_SERVERS=1")
	}
	for _, kind := range kinds {
		switch kind {
		case server.Redis:
			has("redis=" + value("ONELANE_REDIS"))
			value("ONELANE_REDIS_SERVER")
		case server.MySQL:
			has("mysql:" + value("ONELANE_MYSQL_DSN"))
		case server.Postgres:
			has("postgres:" + value("ONELANE_POSTGRES_DSN"))
		case server.Etcd:
			value("ONELANE_ETCD")
		case server.ZooKeeper:
			value("ONELANE_ZOOKEEPER")
		}
	}
}

// answers says which of the addresses in the text, one per line, take connections.
func answers(text string) (answering, silent []string) {
	for _, addr := range strings.Fields(text) {
		conn, err := net.DialTimeout("tcp", addr, 30*time.Second)
		if err != nil {
			silent = append(silent, addr)
			continue
		}
		conn.Close()
		answering = append(answering, addr)
	}
	return answering, silent
}

// addresses prints host:port of every server, in sh.
const addresses = `for v in "$ONELANE_REDIS" "$ONELANE_MYSQL_DSN" "$ONELANE_POSTGRES_DSN" "$ONELANE_ETCD" "$ONELANE_ZOOKEEPER"; do
	test -z "$v" || echo "$v" | grep -o '127.0.0.1:[0-9]*'
done
`

// The command has the servers in its environment, and they end with it.
func TestServersEndWithTheCommand(t *testing.T) {
	flags, kinds := available(t)
	if len(kinds) == 0 {
		return
	}
	// Not t.TempDir: the servers' own users must get in.
	tmp, err := os.MkdirTemp("", "servers-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	const ours, child = "addresses", "child="
	cmd := servers(t, append(flags, "sh", "-c", `printf '%s\n' "$@"; env; cat; echo `+ours+"\n"+addresses+
		"sleep 60 & echo "+child+"$!", "sh",
		"redis=$ONELANE_REDIS", "mysql:${ONELANE_MYSQL_DSN}", "postgres:$ONELANE_POSTGRES_DSN", "$HOME")...)
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	cmd.Stdin = strings.NewReader("input\n")
	got := output(t, cmd)
	environment, rest, _ := strings.Cut(got.stdout, "\n"+ours+"\n")
	addrs, sleeper, started := strings.Cut(rest, child)
	if got.status != 0 || got.stderr != "" || !started {
		t.Fatalf("got %+v", got)
	}
	wantEnvironment(t, environment, kinds)
	answering, silent := answers(addrs)
	if len(answering) > 0 || len(silent) != len(kinds) {
		t.Errorf("after the command: %v answer, %v are silent; want %d servers, all silent", answering, silent, len(kinds))
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("they left %v, %v", left, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(sleeper))
	if err != nil {
		t.Fatal(err)
	}
	gone := func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH || zombie(pid) }
	for i := 0; !gone(); i++ {
		if i == 2000 {
			t.Fatalf("the command's child %d outlives it", pid)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A server that is left out on purpose is not required.
func TestEnvironment_Requires(t *testing.T) {
	if env := environment([]server.Kind{server.MySQL}, []*server.Server{{DSN: "x"}}); env[server.EnvRequire] != "" {
		t.Errorf("with MySQL alone, %s is %q: the tests of the others fail", server.EnvRequire, env[server.EnvRequire])
	}
	all := make([]*server.Server, len(server.Kinds))
	for i := range all {
		all[i] = &server.Server{}
	}
	if env := environment(server.Kinds, all); env[server.EnvRequire] != "1" {
		t.Error("with all servers, a missing one is no failure")
	}
}

//go:build unix

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onelane/onelane/testutil/internal/server"
)

// zombie reports whether a process has ended and nobody has asked how, as in containers without an
// init process.
func zombie(pid int) bool {
	out, _ := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return strings.HasPrefix(string(out), "Z")
}

// everyServer is the case with a server of each kind. The others have one.
const everyServer = "interrupt, every server"

func TestSignals(t *testing.T) {
	all, kinds := available(t)
	if len(kinds) == 0 {
		return
	}
	one, _ := oneServer(t)
	for _, c := range []struct {
		name    string
		signal  syscall.Signal
		command string
		status  int
		says    string
	}{
		{everyServer, syscall.SIGINT, "exec sleep 60", 128 + 2, ""},
		{"terminate", syscall.SIGTERM, "exec sleep 60", 128 + 15, ""},
		{"hang-up", syscall.SIGHUP, "exec sleep 60", 128 + 1, ""},
		{"quit", syscall.SIGQUIT, "exec sleep 60", 128 + 3, ""},
		{"the command has the last word", syscall.SIGINT, "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.01; done", 5, "caught\n"},
		{"children of the command", syscall.SIGTERM, "sh -c 'echo ready; exec sleep 60'; exit 6", 128 + 15, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			flags, started := one, 1
			if c.name == everyServer {
				flags, started = all, len(kinds)
			}
			cmd := servers(t, slices.Concat(flags, []string{"sh", "-c", addresses + "echo ready\n" + c.command})...)
			// The servers of these tests do not count.
			for _, outer := range []string{server.EnvRedis, server.EnvMySQL, server.EnvPostgres, server.EnvEtcd, server.EnvZooKeeper} {
				cmd.Env = append(cmd.Env, outer+"=")
			}
			cmd.Stderr = os.Stderr
			pipe, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var addrs strings.Builder
			out := bufio.NewReader(pipe)
			ready := 1 + strings.Count(c.command, "echo ready")
			for ready > 0 {
				line, err := out.ReadString('\n')
				if err != nil {
					t.Fatalf("the command said %q, then %v", addrs.String(), err)
				}
				if line == "ready\n" {
					ready--
				} else {
					addrs.WriteString(line)
				}
			}
			if answering, silent := answers(addrs.String()); len(answering) != started {
				t.Errorf("while the command runs %v answer and %v do not", answering, silent)
			}
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(out)
			_ = cmd.Wait()
			if ws := cmd.ProcessState; ws.ExitCode() != c.status {
				t.Errorf("it ended with %v, want status %d", ws, c.status)
			}
			if string(rest) != c.says {
				t.Errorf("after the signal it said %q, want %q", rest, c.says)
			}
			if answering, _ := answers(addrs.String()); len(answering) > 0 {
				t.Errorf("%v answer after the signal", answering)
			}
		})
	}
}

func TestSignalWhilePreparing(t *testing.T) {
	_, kinds := available(t)
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	if len(kinds) == 0 {
		return
	}
	began := time.Now()
	running, sig, err := prepare(kinds, false, false, io.Discard, signals)
	if sig != syscall.SIGTERM || err == nil || running != nil {
		t.Errorf("got servers %v, signal %v, error %v", running, sig, err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v to stop preparing", took)
	}
}

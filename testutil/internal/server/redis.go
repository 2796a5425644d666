package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// StartRedis starts a Redis without persistence. The args are added to its command line and win
// over our own, for example "--appendonly", "yes".
func StartRedis(ctx context.Context, args ...string) (*Server, error) {
	return startRedis(ctx, nil, args)
}

func startRedis(ctx context.Context, env, args []string) (*Server, error) {
	binary, err := Find(Redis)
	if err != nil {
		return nil, err
	}
	return start(ctx, spec{
		kind: Redis,
		env:  env,
		end:  syscall.SIGKILL,
		command: func(dir string, port int) *exec.Cmd {
			line := append([]string{"--save", "", "--appendonly", "no", "--daemonize", "no"}, args...)
			line = append(line, "--dir", dir, "--bind", "127.0.0.1", "--port", strconv.Itoa(port))
			return exec.Command(binary, line...)
		},
		ready: redisReady,
	})
}

// StartSentinel starts a Redis Sentinel that watches the master at addr under a name, and alone may
// decide that it is down. A busy machine that stands still for a second is not down.
func StartSentinel(ctx context.Context, name, addr string) (*Server, error) {
	binary, err := Find(Redis)
	if err != nil {
		return nil, err
	}
	host, masterPort, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 1\nsentinel down-after-milliseconds %[1]s 2000\nsentinel failover-timeout %[1]s 3000\n",
		name, host, masterPort)
	return start(ctx, spec{
		kind: Redis,
		end:  syscall.SIGKILL,
		prepare: func(_ context.Context, dir string) error { // it rewrites its configuration
			return os.WriteFile(filepath.Join(dir, "sentinel.conf"), []byte(config), 0o600)
		},
		command: func(dir string, port int) *exec.Cmd {
			return exec.Command(binary, filepath.Join(dir, "sentinel.conf"), "--sentinel", "--dir", dir, "--bind", "127.0.0.1", "--port", strconv.Itoa(port))
		},
		ready: redisReady,
	})
}

// redisReady asks for the process id too: the port might belong to somebody else's Redis while ours
// fails to bind it.
func redisReady(ctx context.Context, s *Server, pid int) error {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", s.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("INFO server\r\nPING\r\n")); err != nil {
		return err
	}
	ours := false
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		switch line := strings.TrimSpace(lines.Text()); {
		case line == fmt.Sprintf("process_id:%d", pid):
			ours = true
		case line == "+PONG" && ours:
			return nil
		case line == "+PONG":
			return errors.New("another process has the port")
		case strings.HasPrefix(line, "-"):
			return errors.New(line[1:])
		}
	}
	return errors.New("no answer to PING")
}

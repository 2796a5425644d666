package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
)

// A child is this command with childEnv set to "REDIS FILE PROVIDER CRASH": it serves on a free
// port and prints its address.
const (
	childEnv    = "IDEMPOTENTAPI_SERVICE"
	exitCrashed = 86
)

var discard = log.New(io.Discard, "", 0)

// child is a service process.
type child struct {
	cmd  *exec.Cmd
	addr string
	in   io.Closer
	done chan struct{} // closed when it has exited
	once sync.Once
}

func startChild(ctx context.Context, w *world, crash bool) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s\n%s\n%s\n%t", childEnv, w.redis, w.dbFile, w.provider.URL, crash))
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil { // its end tells the child that we are gone
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start a service process: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	if c.addr = strings.TrimSpace(line); err != nil || c.addr == "" {
		c.stop()
		return nil, errors.New("a service process did not start")
	}
	return c, nil
}

func (c *child) exited() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// crashed waits until it has exited, and reports whether it died as planned.
func (c *child) crashed() bool {
	select {
	case <-c.done:
		return c.cmd.ProcessState.ExitCode() == exitCrashed
	case <-time.After(10 * time.Second):
		return false
	}
}

func (c *child) stop() {
	c.once.Do(func() {
		_ = c.in.Close()
		select {
		case <-c.done:
		case <-time.After(5 * time.Second):
			_ = c.cmd.Process.Kill()
			<-c.done
		}
	})
}

// serveChild is the main of a child.
func serveChild(ctx context.Context, stdout io.Writer) error {
	parts := strings.Split(os.Getenv(childEnv), "\n")
	if len(parts) != 4 {
		return fmt.Errorf("%s is set by this command itself: unset it", childEnv)
	}
	s, stop, err := newService(parts[0], parts[1], parts[2], core.WithTTL(shortTTL))
	if err != nil {
		return err
	}
	defer stop()
	s.crash = parts[3] == "true"
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("cannot listen on loopback: %w", err)
	}
	server := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	fmt.Fprintln(stdout, listener.Addr())
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	<-ctx.Done()
	return nil
}

// Package server runs private Redis, MariaDB, PostgreSQL, etcd and ZooKeeper processes for tests.
// Each process has a free loopback port, and its data in a temporary folder. Stop ends it. On Linux
// it also ends together with the process that started it.
package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startTimeout = time.Minute
	pollEvery    = 5 * time.Millisecond
	portTries    = 10
)

// Server is a running server process. Its methods are safe for concurrent use.
type Server struct {
	Addr string // host:port on loopback
	DSN  string // for database/sql drivers, with a database "onelane" in it; empty for Redis and etcd

	spec spec
	dir  string
	port int

	mu      sync.Mutex
	process *process // nil once stopped
}

// spec is what differs between the kinds of server.
type spec struct {
	kind Kind
	// env has NAME=value, besides the caller's. It is not for prepare.
	env []string
	// account is the one that the process runs as, or nil for the caller's.
	account *account
	// prepare fills the data folder, once. It may be nil.
	prepare func(ctx context.Context, dir string) error
	// command runs in the foreground.
	command func(dir string, port int) *exec.Cmd
	// ready returns nil once the process with that pid answers.
	ready func(ctx context.Context, s *Server, p int) error
	// dsn may be nil.
	dsn func(port int) string
	// end ends the process at once. The data folder no longer matters then.
	end syscall.Signal
}

// Start starts a server of the given kind and returns when it answers. It returns a *MissingError
// if the server is not installed.
func Start(ctx context.Context, kind Kind) (*Server, error) { return StartWith(ctx, kind, nil) }

// StartWith is Start for a server whose process has more in its environment than the caller's, each
// NAME=value. The args are those of StartRedis, StartMariaDB, StartPostgres and StartZooKeeper.
func StartWith(ctx context.Context, kind Kind, env []string, args ...string) (*Server, error) {
	switch kind {
	case Redis:
		return startRedis(ctx, env, args)
	case MySQL:
		return startMariaDB(ctx, env, args)
	case Postgres:
		return startPostgres(ctx, env, args)
	case Etcd:
		return startEtcd(ctx, env, args)
	case ZooKeeper:
		return startZooKeeper(ctx, env, nil, args)
	}
	return nil, fmt.Errorf("server: unknown kind %q: use one of %v", kind, Kinds)
}

func start(ctx context.Context, sp spec) (_ *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := &Server{spec: sp}
	if s.dir, err = folder(sp.account); err != nil {
		return nil, fmt.Errorf("server: no folder for the data of %s: %w", sp.kind, err)
	}
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	if err := sp.account.own(s.dir); err != nil {
		return nil, err
	}
	if sp.prepare != nil {
		if err := sp.prepare(ctx, s.dir); err != nil {
			return nil, err
		}
	}
	for range portTries {
		if s.port, err = freePort(); err != nil {
			return nil, err
		}
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
		if sp.dsn != nil {
			s.DSN = sp.dsn(s.port)
		}
		// Another process may take the port between its choice and the server's bind.
		if err = s.launch(ctx); !errors.Is(err, errPortTaken) {
			return s, err
		}
	}
	return nil, err
}

// longestParent leaves room for our folder and a socket in it: the path of a socket has at most 103
// bytes on macOS.
const longestParent = 65

// InMemory is true if servers keep their data in memory when TMPDIR is not set and there is room.
// Databases then take a third less time of the processors, and a disk is not measured.
var InMemory bool

// folder makes a folder for data: in TMPDIR, or in /tmp if the servers cannot work in TMPDIR.
func folder(a *account) (string, error) {
	parent, err := filepath.Abs(os.TempDir())
	if err != nil {
		return "", err
	}
	if memory, room := memoryFolder(); InMemory && os.Getenv("TMPDIR") == "" && room && fits(memory, a) {
		return os.MkdirTemp(memory, "onelane-")
	}
	if info, err := os.Stat("/tmp"); err == nil && info.IsDir() && !fits(parent, a) {
		parent = "/tmp"
	}
	return os.MkdirTemp(parent, "onelane-")
}

// fits reports whether all servers can work in a folder. MariaDB's script splits its name at a
// space, and PostgreSQL at a comma. Another account than the caller's must be able to enter it.
func fits(dir string, a *account) bool {
	if len(dir) > longestParent || strings.ContainsAny(dir, " \t,'\"") {
		return false
	}
	for ; a != nil && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode()&0o001 == 0 {
			return false
		}
	}
	return true
}

var errPortTaken = errors.New("the port is taken")

func (s *Server) launch(ctx context.Context) error {
	p, err := startProcess(s.spec, s.dir, s.port)
	if err != nil {
		return fmt.Errorf("server: starting %s: %w", s.spec.kind, err)
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	for begun := time.Now(); ; {
		err := s.spec.ready(ctx, s, p.pid())
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			log := p.log()
			if strings.Contains(strings.ToLower(log), "address already in use") {
				return fmt.Errorf("server: %s on port %d: %w", s.spec.kind, s.port, errPortTaken)
			}
			return fmt.Errorf("server: %s ended while starting (%v); its log ends:\n%s", s.spec.kind, p.err, log)
		case <-ctx.Done():
			return fmt.Errorf("server: %s did not answer: %w (last: %v); its log ends:\n%s", s.spec.kind, ctx.Err(), err, p.log())
		case <-time.After(max(time.Since(begun)/16, pollEvery)): // each answer costs a slow server time
		}
	}
}

// Pid is the process id of the server, 0 once it was stopped.
func (s *Server) Pid() int {
	if p := s.current(); p != nil {
		return p.pid()
	}
	return 0
}

// Ended returns nil while the process runs, and after Stop. If the process ended by itself, the
// error has the end of its log.
func (s *Server) Ended() error {
	p := s.current()
	if p == nil {
		return nil
	}
	select {
	case <-p.done:
		return fmt.Errorf("server: %s ended (%v); its log ends:\n%s", s.spec.kind, p.err, p.log())
	default:
		return nil
	}
}

// Stop ends the process and removes its data. It is idempotent.
func (s *Server) Stop() {
	s.Kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = nil
	for range 100 { // a child of the process may write for a moment longer
		if os.RemoveAll(s.dir) == nil {
			return
		}
		time.Sleep(pollEvery)
	}
}

// Kill ends the process as a crash would, by SIGKILL, or for PostgreSQL, whose children would
// outlive that for a moment, by its immediate shutdown. It returns when the process is gone; the
// port and the data folder are kept for Restart.
func (s *Server) Kill() {
	if p := s.current(); p != nil {
		p.stop(s.spec.end)
	}
}

// Pause stops the process in its tracks (SIGSTOP): connections stay open and nothing answers. It
// returns when the process stands still.
func (s *Server) Pause() error { return s.act(pause) }

// Resume lets a paused process go on (SIGCONT).
func (s *Server) Resume() error { return s.act(resume) }

func (s *Server) act(do func(*os.Process) error) error {
	p := s.current()
	if p == nil {
		return fmt.Errorf("server: %s was stopped", s.spec.kind)
	}
	if err := do(p.cmd.Process); err != nil {
		return fmt.Errorf("server: %s, process %d: %w", s.spec.kind, p.pid(), err)
	}
	return nil
}

// Restart kills the process, if it still runs, and starts it again on the same port and data
// folder. A Redis without persistence comes back empty.
func (s *Server) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if s.current() == nil {
		return fmt.Errorf("server: %s was stopped and cannot be restarted; start a new one", s.spec.kind)
	}
	s.Kill()
	var err error
	for range portTries {
		if err = s.launch(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// freePort chooses below the ephemeral range, so that no outgoing connection takes the port of a
// server while it is being restarted. Nor does another server: until this process ends, no other
// freePort chooses the port, in any process.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := strconv.Itoa(15000 + rand.IntN(17000))
		mark, marked := net.Listen("tcp", net.JoinHostPort(portMarks, port))
		if errors.Is(marked, syscall.EADDRINUSE) {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			if marked == nil {
				keep(mark)
			}
			return l.Addr().(*net.TCPAddr).Port, l.Close()
		}
		if marked == nil {
			_ = mark.Close()
		}
	}
	return 0, fmt.Errorf("server: no free port on 127.0.0.1: %w", err)
}

// portMarks is the address on which a listener marks a port as chosen. On macOS it is not an
// address of loopback, and ports are not marked.
const portMarks = "127.127.127.127"

var marks struct {
	sync.Mutex
	listeners []net.Listener
}

// keep keeps a mark for as long as this process lives.
func keep(mark net.Listener) {
	marks.Lock()
	defer marks.Unlock()
	marks.listeners = append(marks.listeners, mark)
}

//go:build unix

// Package pausetest tests a backend with a process that stands still while it holds a lock.
package pausetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
)

// childVar has the address for the process that holds the lock: this test binary, started again.
const childVar = "ONELANE_PAUSETEST_ADDRESS"

// The length of the lease, and how long anything else may take.
const (
	ttl      = time.Second
	patience = time.Minute
)

// Child reports whether this process is the one that Run starts. Then it has done its work. A
// TestMain calls Child first. open returns the backend at the address that Run was called with.
func Child(open func(address string) (core.Opener, error)) bool {
	address := os.Getenv(childVar)
	if address == "" {
		return false
	}
	backend, err := open(address)
	if err == nil {
		err = child(backend)
	}
	if err != nil {
		fmt.Println("failed:", err)
	}
	return true
}

// child holds the key k, reads the set and is stopped. It says what it sees after that, and writes
// the set as a program does that does not look whether its lock is lost.
func child(backend core.Opener) error {
	ctx := context.Background()
	l, err := core.New(backend, core.WithTTL(ttl), core.WithLogger(slog.New(slog.DiscardHandler)),
		core.WithOutageWait(patience))
	if err != nil {
		return err
	}
	defer l.Close()
	k, err := l.Acquire(ctx, "k", core.WithToken())
	if err != nil {
		return err
	}
	token, err := k.Token(ctx)
	if err != nil {
		return err
	}
	held := k.Context()
	in := bufio.NewReader(os.Stdin)
	fmt.Println("read", token)
	members, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	fmt.Println("has read")
	if _, err := in.ReadString('\n'); err != nil { // here it is stopped
		return err
	}
	fmt.Println("lost", errors.Is(k.Err(), core.ErrLost), errors.Is(context.Cause(held), core.ErrLost))
	fmt.Println("write", token, strings.TrimSpace(members)+"paused")
	err = k.Extend(ctx, time.Minute)
	fmt.Println("extend", errors.Is(err, core.ErrLost))
	err = k.Release(ctx)
	fmt.Println("release", err == nil || errors.Is(err, core.ErrLost))
	return nil
}

// Run stops a process with SIGSTOP for longer than its lease, while it holds the key k at the
// address. Another one, with the backend, gets the key. The first one learns that its lock is lost
// before it goes on, and does no harm. If it writes nevertheless, a set that is fenced refuses
// that. In a set that is not, the other's update is lost, whatever the lock.
func Run(t *testing.T, address string, backend core.Opener) {
	t.Helper()
	other, err := core.New(backend, core.WithTTL(time.Minute), core.WithOutageWait(patience),
		core.WithLogger(slog.New(slog.DiscardHandler)))
	must(t, "New", err)
	defer other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	fenced, unfenced := &set{fenced: true}, &set{}
	sets := []*set{fenced, unfenced}
	p := start(ctx, t, address)

	var before uint64
	p.says("read %d", &before)
	for _, s := range sets {
		_, err := s.read(before)
		must(t, "the first holder's read", err)
	}
	p.tell(unfenced.members)
	p.says("has read")
	must(t, "SIGSTOP", p.Process.Signal(syscall.SIGSTOP))

	k, err := other.Acquire(ctx, "k", core.WithToken())
	must(t, "Acquire while the first holder stands still", err)
	after, err := k.Token(ctx)
	if must(t, "Token", err); after <= before {
		t.Errorf("token %d after %d", after, before)
	}
	for _, s := range sets {
		members, err := s.read(after)
		must(t, "the second holder's read", err)
		must(t, "the second holder's write", s.write(after, members+"other "))
	}

	p.tell("go on") // it reads this as soon as it runs again
	must(t, "SIGCONT", p.Process.Signal(syscall.SIGCONT))
	p.says("lost true true")
	var members string
	p.says("write %d %s", &before, &members)
	if err := fenced.write(before, members); !errors.Is(err, errStale) || fenced.members != "other " {
		t.Errorf("the fenced set is %q after a late write, which got %v", fenced.members, err)
	}
	if err := unfenced.write(before, members); err != nil || unfenced.members != "paused" {
		t.Errorf("the set is %q after a late write, which got %v", unfenced.members, err)
	}
	p.says("extend true")
	p.says("release true")
	st, err := other.Inspect(ctx, "k")
	must(t, "Inspect", err)
	if st.Status != core.Held || st.Owner != k.Owner() || k.Err() != nil {
		t.Errorf("after the first holder went on the key is %v, of %s; %v", st.Status, st.Owner, k.Err())
	}
	must(t, "Release", k.Release(ctx))
}

// process is a child of the test.
type process struct {
	*exec.Cmd
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

func start(ctx context.Context, t *testing.T, address string) *process {
	t.Helper()
	self, err := os.Executable()
	must(t, "Executable", err)
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childVar+"="+address)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, "StdoutPipe", err)
	in, err := cmd.StdinPipe()
	must(t, "StdinPipe", err)
	must(t, "Start", cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &process{Cmd: cmd, t: t, in: in, out: bufio.NewScanner(out)}
}

// says waits for the child's next line, and reads it into some variables.
func (p *process) says(format string, into ...any) {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("the child ended, want %q from it: %v", format, p.out.Err())
	}
	if n, err := fmt.Sscanf(p.out.Text(), format, into...); n != len(into) || err != nil {
		p.t.Fatalf("the child says %q, want %q", p.out.Text(), format)
	}
}

func (p *process) tell(line string) {
	p.t.Helper()
	_, err := io.WriteString(p.in, line+"\n")
	must(p.t, "telling the child", err)
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

const childEnv = "ONELANE_TEST_CHILD_KIND"

// The child of TestEndsWithItsParent: it starts a server, says its pid and waits to be killed.
func init() {
	kind := os.Getenv(childEnv)
	if kind == "" {
		return
	}
	s, err := Start(context.Background(), Kind(kind))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.Pid(), s.dir)
	select {}
}

func TestEndsWithItsParent(t *testing.T) {
	each(t, func(t *testing.T, kind Kind) {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), childEnv+"="+string(kind))
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		var pid int
		var dir string
		_, err = fmt.Fscan(bufio.NewReader(out), &pid, &dir)
		_ = child.Process.Kill()
		_ = child.Wait()
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		for range 6000 { // 30 s
			if err := syscall.Kill(pid, 0); err == syscall.ESRCH {
				return
			}
			if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); bytes.Contains(stat, []byte(") Z")) {
				return // nobody reaps orphans in some containers
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Errorf("process %d outlives its parent", pid)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	})
}

func init() {
	onLinux = func(t *testing.T, kind Kind, s *Server) {
		t.Helper()
		pauseAndResume(t, kind, s)
		hasItsEnvironment(t, kind, s)
	}
}

func pauseAndResume(t *testing.T, kind Kind, s *Server) {
	t.Helper()
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- ask(kind, s) }()
	select {
	case err := <-answered:
		// On a busy machine the time-out may be over.
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			t.Errorf("a paused server let a call return: %v", err)
		}
		answered <- err
	case <-time.After(100 * time.Millisecond):
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Logf("after Resume: %v", err)
		mustAnswer(t, kind, s)
	}
}

func hasItsEnvironment(t *testing.T, kind Kind, s *Server) {
	t.Helper()
	if kind == Redis {
		return // it writes its title over what /proc shows
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ONELANE_TEST_OWN=yes", "PATH=" + os.Getenv("PATH")} {
		if !bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+want+"\x00")) {
			t.Errorf("it has no %s", want)
		}
	}
}

// The port of a server that was killed for a while must not become another server's.
func TestFreePort_IsMarked(t *testing.T) {
	chosen := make(map[int]bool)
	for range 100 {
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		if chosen[port] {
			t.Fatalf("port %d was chosen twice", port)
		}
		chosen[port] = true
		l, err := net.Listen("tcp", net.JoinHostPort(portMarks, strconv.Itoa(port)))
		if err == nil {
			_ = l.Close()
			t.Fatalf("port %d is not marked", port)
		}
	}
}

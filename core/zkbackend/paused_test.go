package zkbackend_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
)

// childVar makes this test binary a process that holds a key; see TestMain.
const childVar = "ONELANE_ZKBACKEND_CHILD"

// holdAndReport holds the key k until it is lost, and says what it sees.
func holdAndReport(addr string) {
	addr, root, _ := strings.Cut(addr, "/")
	l, err := core.New(zkbackend.New([]string{addr}, zkbackend.WithRoot("/"+root)), core.WithTTL(time.Second), core.WithLogger(quiet),
		core.WithOutageWait(patience))
	if err != nil {
		panic(err)
	}
	defer l.Close()
	k, err := l.Acquire(context.Background(), "k", core.WithToken())
	if err != nil {
		panic(err)
	}
	token, err := k.Token(context.Background())
	fmt.Println("held", token, err)
	<-k.Context().Done()
	fmt.Println("lost", errors.Is(k.Err(), core.ErrLost), errors.Is(k.Extend(context.Background(), time.Minute), core.ErrLost))
	err = k.Release(context.Background())
	fmt.Println("released", err == nil || errors.Is(err, core.ErrLost))
}

// A process that stands still for longer than its lease loses its lock, and does no harm when it goes
// on.
func TestHolder_Paused(t *testing.T) {
	t.Parallel()
	node := shared(t)
	self, err := os.Executable()
	ok(t, "Executable", err)
	child := exec.Command(self)
	child.Env = append(os.Environ(), childVar+"="+node.Addr()+rootOf(t))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	ok(t, "StdoutPipe", err)
	ok(t, "Start", child.Start())
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	lines := bufio.NewScanner(out)
	says := func(format string, into ...any) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the child ended: %v", lines.Err())
		}
		if n, err := fmt.Sscanf(lines.Text(), format, into...); n != len(into) || err != nil {
			t.Fatalf("the child says %q, want %q", lines.Text(), format)
		}
	}
	var before uint64
	says("held %d <nil>", &before)
	ok(t, "SIGSTOP", child.Process.Signal(syscall.SIGSTOP))
	l := locker(t, at(t, node.Addr()), core.WithTTL(time.Minute), core.WithOutageWait(patience))
	k, err := l.Acquire(t.Context(), "k", core.WithToken())
	ok(t, "Acquire", err)
	after, err := k.Token(t.Context())
	ok(t, "Token", err)
	if after <= before {
		t.Errorf("token %d after %d", after, before)
	}
	ok(t, "SIGCONT", child.Process.Signal(syscall.SIGCONT))
	says("lost true true")
	says("released true")
	st, err := l.Inspect(t.Context(), "k")
	ok(t, "Inspect", err)
	if st.Status != core.Held || st.Owner != k.Owner() || k.Err() != nil {
		t.Errorf("after the first holder went on the key is %v, of %s; %v", st.Status, st.Owner, k.Err())
	}
	ok(t, "Release", k.Release(t.Context()))
}

// A lock that is held for several times its TTL is renewed, and nobody else gets it.
func TestHolder_Renews(t *testing.T) {
	t.Parallel()
	node := shared(t)
	opts := []core.Option{core.WithTTL(time.Second), core.WithOutageWait(patience)}
	l, other := locker(t, at(t, node.Addr()), opts...), locker(t, at(t, node.Addr()), opts...)
	k, err := l.Acquire(t.Context(), "k")
	ok(t, "Acquire", err)
	c, path := client(t, node.Addr()), keyNodes(t, node.Addr(), rootOf(t))[0]
	eventually(t, "six renewals", func() bool {
		_, err := other.TryAcquire(t.Context(), "k")
		want(t, "TryAcquire", err, core.ErrTaken)
		_, stat, err := c.Get(path)
		ok(t, "Get", err)
		return stat.Version > 6
	})
	ok(t, "the lock", k.Err())
	ok(t, "Release", k.Release(t.Context()))
}

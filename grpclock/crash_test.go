//go:build unix

package grpclock_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// crashing is a service whose method Create has an effect: a line in a file. The process that dies
// and the one that serves the retry have one each.
type crashing struct {
	Redis, Prefix string
	Effects       string // the file
	Mode          string
	TTL           time.Duration // of the claim
	Dies          string        // the moment, or empty
}

const (
	modeRefuse   = "default"
	modeRecover  = "Recover"
	modeRunAgain = "RunAgain"
)

// childCrashing is set for the process that dies. It is this test binary, started again.
const childCrashing = "ONELANE_TEST_CRASHING"

// init does not return in a child.
func init() {
	text := os.Getenv(childCrashing)
	if text == "" {
		return
	}
	check.EndWithParent()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	var c crashing
	err := json.Unmarshal([]byte(text), &c)
	var l net.Listener
	if err == nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	var i grpc.UnaryServerInterceptor
	if err == nil {
		i, _, err = c.interceptor()
	}
	if err == nil {
		g := grpc.NewServer(grpc.UnaryInterceptor(i))
		testpb.RegisterOrdersServer(g, &orders{handle: c.create})
		fmt.Println(l.Addr())
		err = g.Serve(l)
	}
	fmt.Println(err)
	os.Exit(1)
}

// interceptor returns the protection, and a function that ends it.
func (c *crashing) interceptor() (grpc.UnaryServerInterceptor, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: c.Redis})
	b := redisbackend.New(client)
	b.NodeTimeout = 10 * time.Second // the machine may be busy
	l, err := core.New(check.DyingBackend(b, c.Dies), core.WithTTL(c.TTL), core.WithPrefix(c.Prefix),
		core.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	opts := []grpclock.Option{idempotency.WithLocker(l)}
	switch c.Mode {
	case modeRecover:
		opts = append(opts, grpclock.Recover(c.tell))
	case modeRunAgain:
		opts = append(opts, idempotency.RunAgain())
	}
	return grpclock.ByMetadata(idempotencyKey, opts...), func() { _, _ = l.Close(), client.Close() }, nil
}

// create is the handler.
func (c *crashing) create(context.Context, *request) (*order, error) {
	check.Dies(c.Dies, check.BeforeEffect)
	f, err := os.OpenFile(c.Effects, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, "paid"); err != nil {
		return nil, err
	}
	check.Dies(c.Dies, check.AfterEffect)
	return &order{Id: "paid"}, nil
}

// tell is the Recover function: it looks at the effects, as one asks a payment provider.
func (c *crashing) tell(_ context.Context, _ any, earlier idempotency.Run) (any, idempotency.Recovery, error) {
	switch n, err := c.effects(); {
	case err != nil || earlier.Instance == "" || earlier.Begun.IsZero():
		return nil, idempotency.StillUnknown, nil
	case n == 0:
		return nil, idempotency.RunHandler, nil
	}
	return &order{Id: "told"}, idempotency.Answered, nil
}

func (c *crashing) effects() (int, error) {
	b, err := os.ReadFile(c.Effects)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return strings.Count(string(b), "\n"), err
}

// killed lets a child serve the call, and reports whether it died at its moment. At AfterAnswer the
// test kills it.
func (c crashing) killed(t *testing.T) bool {
	t.Helper()
	text, err := json.Marshal(c)
	check.OK(t, "Marshal", err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childCrashing+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check.OK(t, "StdinPipe", err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	check.OK(t, "StdoutPipe", err)
	check.OK(t, "Start", cmd.Start())
	addr, err := bufio.NewReader(out).ReadString('\n')
	check.OK(t, "the address of the child", err)
	s := &server{t: t, addr: strings.TrimSpace(addr)}
	s.OrdersClient = testpb.NewOrdersClient(s.dial())
	a := s.create("k", &request{OrderId: "7"})
	if answered := a.err == nil; answered && c.Dies == check.AfterAnswer {
		check.OK(t, "Kill", cmd.Process.Kill())
	} else if !answered && status.Code(a.err) == codes.Unavailable && a.reason() == "" {
		// the connection broke
	} else {
		t.Logf("with a lease of %v, the child answered %v, %v", c.TTL, a.order, a.err)
		in.Close() // ends a child that lives on
	}
	return check.Killed(cmd.Wait()) && ctx.Err() == nil
}

// Whenever the process dies, the retry that another process serves gets the truth, and nothing
// happens twice. The exception is RunAgain alone, which says that a second run does no harm.
func TestCrash(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	type end struct {
		result  string // of the retry
		effects int
	}
	const paid, told, replayed, unknown = "paid", "told", "a replay", "unknown"
	for moment, want := range map[string]map[string]end{
		check.BeforeHandler: {modeRefuse: {unknown, 0}, modeRecover: {paid, 1}, modeRunAgain: {paid, 1}},
		check.BeforeEffect:  {modeRefuse: {unknown, 0}, modeRecover: {paid, 1}, modeRunAgain: {paid, 1}},
		check.AfterEffect:   {modeRefuse: {unknown, 1}, modeRecover: {told, 1}, modeRunAgain: {paid, 2}},
		check.BeforeRecord:  {modeRefuse: {unknown, 1}, modeRecover: {told, 1}, modeRunAgain: {paid, 2}},
		check.AfterRecord:   {modeRefuse: {replayed, 1}, modeRecover: {replayed, 1}, modeRunAgain: {replayed, 1}},
		check.AfterAnswer:   {modeRefuse: {unknown, 1}, modeRecover: {told, 1}, modeRunAgain: {paid, 2}},
	} {
		for mode, want := range want {
			t.Run(mode+"/"+moment, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				var c crashing
				// On a busy machine the child may lose its lease before its moment.
				for try, ttl := 1, 2*time.Second; ; try, ttl = try+1, 4*ttl {
					c = crashing{Redis: node.Addr(), Prefix: fmt.Sprint(mode, moment, try, ":"), Mode: mode, TTL: ttl, Dies: moment,
						Effects: filepath.Join(dir, fmt.Sprint(try))}
					if c.killed(t) {
						break
					}
					if try == 3 {
						t.Fatal("the process did not die at its moment")
					}
				}
				c.Dies, c.TTL = "", time.Minute
				i, end, err := c.interceptor()
				check.OK(t, "interceptor", err)
				t.Cleanup(end)
				s := serve(t, &orders{handle: c.create}, grpc.UnaryInterceptor(i))
				retry := func() answer {
					return until(t, func() answer { return s.create("k", &request{OrderId: "7"}) }, func(a answer) bool {
						return a.reason() != reasonInFlight && a.reason() != reasonLockUnavailable // the machine is busy
					})
				}
				first, second := retry(), retry()
				if want.result == unknown {
					first.wantRefusal(t, codes.FailedPrecondition, reasonOutcomeUnknown)
					second.wantRefusal(t, codes.FailedPrecondition, reasonOutcomeUnknown)
				} else {
					id := strings.Replace(want.result, replayed, paid, 1)
					for _, a := range []answer{first, second} {
						if a.err != nil || a.order.GetId() != id {
							t.Errorf("a retry got %v, %v; want %q", a.order, a.err, id)
						}
					}
					if first.replayed() != (want.result == replayed) || !second.replayed() {
						t.Errorf("replayed: %v, then %v; want %v, then true", first.replayed(), second.replayed(), want.result == replayed)
					}
				}
				if n, err := c.effects(); err != nil || n != want.effects {
					t.Errorf("there were %d effects, %v; want %d", n, err, want.effects)
				}
			})
		}
	}
}

//go:build unix

package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// childDelivery is set for a process that handles one delivery of a message with Do and dies in it.
const childDelivery = "ONELANE_TEST_DELIVERY"

// init does not return in a child.
func init() {
	text := os.Getenv(childDelivery)
	if text == "" {
		return
	}
	check.EndWithParent()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	var p payment
	err := json.Unmarshal([]byte(text), &p)
	if err == nil {
		_, err = p.deliver(context.Background())
	}
	check.Dies(p.Dies, check.AfterAnswer)
	fmt.Println(err)
	os.Exit(1)
}

// deliver handles a delivery, as a consumer does before it acknowledges it.
func (p *payment) deliver(ctx context.Context) (string, error) {
	c := redis.NewClient(&redis.Options{Addr: p.Redis})
	defer c.Close()
	b := redisbackend.New(c)
	b.NodeTimeout = 10 * time.Second // the machine may be busy
	l, err := core.New(check.DyingBackend(b, p.Dies), core.WithTTL(p.TTL), core.WithPrefix(p.Prefix), core.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return "", err
	}
	defer l.Close()
	opts := []idempotency.DoOption{idempotency.Retain(time.Hour), idempotency.Payload([]byte("700")), idempotency.Wait(time.Minute)}
	switch p.Mode {
	case modeRunAgain:
		opts = append(opts, idempotency.RunAgain())
	case modeRecover:
		opts = append(opts, idempotency.RecoverWith(func(context.Context, idempotency.Run) (string, idempotency.Recovery, error) {
			if _, err := os.Stat(p.Effects); errors.Is(err, os.ErrNotExist) {
				return "", idempotency.RunHandler, nil
			}
			return "told", idempotency.Answered, nil
		}))
	}
	return idempotency.Do(ctx, l, "pay:7", func(context.Context) (string, error) { return p.inFile(nil) }, opts...)
}

// killed lets a child handle the delivery, and reports whether it died at its moment.
func (p payment) killed(t *testing.T) bool {
	t.Helper()
	text, err := json.Marshal(p)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childDelivery+"="+string(text))
	in, err := cmd.StdinPipe()
	must(t, err)
	defer in.Close()
	out, err := cmd.CombinedOutput()
	if check.Killed(err) && ctx.Err() == nil {
		return true
	}
	t.Logf("with a lease of %v, the process ended with %v: %s", p.TTL, err, out)
	return false
}

// A consumer is killed between taking a message and acknowledging it. The next delivery, in another
// process, gets the truth.
func TestDo_Crash(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	type end struct {
		result  string // "" is an unknown outcome
		effects int
	}
	const paid, told, unknown = "paid by", "told", ""
	for moment, want := range map[string]map[string]end{
		check.BeforeHandler: {modeRefuse: {unknown, 0}, modeRecover: {paid, 1}, modeRunAgain: {paid, 1}},
		check.BeforeEffect:  {modeRefuse: {unknown, 0}, modeRecover: {paid, 1}, modeRunAgain: {paid, 1}},
		check.AfterEffect:   {modeRefuse: {unknown, 1}, modeRecover: {told, 1}, modeRunAgain: {paid, 2}},
		check.BeforeRecord:  {modeRefuse: {unknown, 1}, modeRecover: {told, 1}, modeRunAgain: {paid, 2}},
		check.AfterRecord:   {modeRefuse: {paid, 1}, modeRecover: {paid, 1}, modeRunAgain: {paid, 1}},
	} {
		for mode, want := range want {
			t.Run(mode+"/"+moment, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				var p payment
				for try, ttl := 1, 2*time.Second; ; try, ttl = try+1, 4*ttl {
					p = payment{Redis: node.Addr(), Prefix: fmt.Sprint(mode, moment, try, ":"), Mode: mode, TTL: ttl, Dies: moment,
						Effects: filepath.Join(dir, fmt.Sprint(try))}
					if p.killed(t) {
						break
					}
					if try == 3 {
						t.Fatal("the process did not die at its moment")
					}
				}
				p.Dies, p.TTL = "", time.Minute
				for range 2 { // deliveries
					result, err := p.deliver(t.Context())
					if want.result == unknown {
						check.Want(t, "a delivery", err, idempotency.ErrUnknown)
					} else if err != nil || !strings.HasPrefix(result, want.result) {
						t.Errorf("a delivery got %q, %v; want %q", result, err, want.result)
					}
				}
				if n := p.effects(t); n != want.effects {
					t.Errorf("there were %d effects, want %d", n, want.effects)
				}
			})
		}
	}
}

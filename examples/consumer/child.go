package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
)

// childEnv is set for a process that consumes. It is this command, started again.
const childEnv = "ONELANE_EXAMPLE_CONSUMER"

// The modes of an act.
const (
	modeReport      = "report"
	modeAsk         = "ask"
	modeUnprotected = "unprotected"
)

// A process is killed at one of these moments. All are between the charge and the acknowledgement.
const (
	afterCharge = "after the charge"
	beforeAck   = "before the acknowledgement"
	whileAsking = "while the provider is asked"
)

// act is what the processes of one act have in common, and the moment at which one of them dies.
type act struct {
	Mode, Title, Redis, Bank, Dies string
}

func (a act) stream() string         { return a.key("orders") }
func (a act) key(name string) string { return a.Mode + ":" + name }

// reached kills the process if this is its moment.
func (a act) reached(moment string) {
	if a.Dies != moment {
		return
	}
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill() // SIGKILL
	}
	select {}
}

// consumeAsChild is the main of a child.
func consumeAsChild(ctx context.Context) error {
	var a act
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &a); err != nil {
		return fmt.Errorf("%s is set by this command itself: unset it", childEnv)
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the parent counts what is parked
	client := redis.NewClient(&redis.Options{Addr: a.Redis, ContextTimeoutEnabled: true})
	defer client.Close()
	locker, err := core.New(redisbackend.New(client), core.WithTTL(leaseTTL))
	if err != nil {
		return err
	}
	defer locker.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent, or when it has seen enough
		cancel()
	}()
	c := &consumer{client: client, locker: locker, provider: provider{a.Bank}, name: fmt.Sprint(os.Getpid()), act: a}
	return c.consume(ctx)
}

// runChild runs a process until it dies or ctx ends. It reports whether it was killed at its moment.
func runChild(ctx context.Context, a act) (killed bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	text, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("cannot start a process: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = in.Close() })
	defer stop()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == -1 { // by a signal
		return true, nil
	}
	return false, err
}

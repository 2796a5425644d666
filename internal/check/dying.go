//go:build unix

package check

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/onelane/onelane/core"
)

// A process serves a protected call and dies at one of these moments.
const (
	BeforeHandler = "before the handler"
	BeforeEffect  = "before the effect"
	AfterEffect   = "after the effect"
	BeforeRecord  = "before the record"
	AfterRecord   = "after the record, before the answer"
	AfterAnswer   = "after the answer, before the record"
)

// Dies ends the process with SIGKILL if this is the moment.
func Dies(at, moment string) {
	if at == moment {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// EndWithParent ends a child whose standard input is a pipe of its parent when the parent has ended.
func EndWithParent() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
}

// Killed reports whether a child ended by SIGKILL.
func Killed(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// DyingBackend returns a backend with which the process dies at a moment around the lock or the
// record. At [AfterAnswer] it stores no record.
func DyingBackend(o core.Opener, at string) core.Opener { return &dying{opener: o, at: at} }

type dying struct {
	core.Sealer
	opener core.Opener
	at     string
}

// Open implements core.Opener.
func (b *dying) Open(env core.Environment) (core.Backend, error) {
	opened, err := b.opener.Open(env)
	if err == nil {
		b.Sealer = opened.(core.Sealer)
	}
	return b, err
}

// Acquire implements core.Backend.
func (b *dying) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Sealer.Acquire(ctx, r)
	if err == nil {
		Dies(b.at, BeforeHandler)
	}
	return g, err
}

// Seal implements core.Sealer.
func (b *dying) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	Dies(b.at, BeforeRecord)
	if b.at == AfterAnswer {
		return &core.UnavailableError{Key: g.Key, Nodes: []error{errors.New("held back")}}
	}
	err := b.Sealer.Seal(ctx, g, value, retention)
	if err == nil {
		Dies(b.at, AfterRecord)
	}
	return err
}

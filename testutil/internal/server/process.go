package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// process is one run of a server. Its output goes to a file in the data folder.
type process struct {
	cmd     *exec.Cmd
	logFile string
	done    chan struct{} // closed when the process has ended
	err     error         // how it ended; read after done
}

func startProcess(sp spec, dir string, port int) (*process, error) {
	cmd := sp.command(dir, port)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), sp.env...)
	cmd.SysProcAttr = attributes(sp.account, sp.end)
	out, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	p := &process{cmd: cmd, logFile: out.Name(), done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel ends the child when the thread that started it ends, so that thread is kept for as
		// long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	return p, <-started
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop sends the signal, SIGKILL if that did not help, and returns when the process has ended.
func (p *process) stop(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// log is the end of the process's output.
func (p *process) log() string {
	b, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// run runs one command that prepares a data folder.
func run(ctx context.Context, acc *account, dir, binary string, args ...string) error {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = attributes(acc, syscall.SIGKILL)
	cmd.WaitDelay = time.Second // its own children may outlive it for a moment
	runtime.LockOSThread()      // see startProcess
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("server: %s: %w; it said:\n%s", filepath.Base(binary), errors.Join(err, ctx.Err()), out)
	}
	return nil
}

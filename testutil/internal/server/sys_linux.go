package server

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// attributes puts the child into a new process group, out of reach of Ctrl-C, and lets the kernel
// end it with its parent.
func attributes(a *account, end syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: end}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// pause returns once the process stands still: a signal alone lets it run a little longer on
// another core.
func pause(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for range 10_000 { // a busy machine may not stop it at once
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		if err != nil {
			return err
		}
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 && bytes.HasPrefix(stat[i:], []byte(") T")) {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("it got SIGSTOP and did not stop within 10 s")
}

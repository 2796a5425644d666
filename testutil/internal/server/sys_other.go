//go:build !unix

package server

import (
	"errors"
	"os"
	"syscall"
)

func attributes(*account, syscall.Signal) *syscall.SysProcAttr { return nil }

var errNoSignals = errors.New("this system cannot pause processes: run the test on Linux or macOS")

func pause(*os.Process) error  { return errNoSignals }
func resume(*os.Process) error { return errNoSignals }

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// command runs args with env added to the environment, hands it the signals, and returns its status
// when it has ended.
func command(args []string, env map[string]string, stdin *os.File, stdout, stderr io.Writer, signals <-chan os.Signal) (int, error) {
	args = expand(args, env)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = os.Environ()
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	repeat := func() {}
	if isGoTest(args) {
		f := &failures{Writer: stdout}
		cmd.Stdout, repeat = f, f.repeat
		cmd.Env = append(cmd.Env, "GOFLAGS="+morePackages(goFlags(args[0]), runtime.NumCPU()))
	}
	cmd.WaitDelay = 5 * time.Second // its own children may hold the output open
	// In a separate group it cannot read from a terminal.
	if info, err := stdin.Stat(); err == nil && info.Mode()&os.ModeCharDevice == 0 {
		cmd.Stdin = stdin
	}
	ownGroup(cmd)
	runtime.LockOSThread() // on Linux the command ends with the thread that started it
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return statusUsage, fmt.Errorf("COMMAND did not start: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			signalGroup(cmd, sig)
		case err := <-ended:
			killGroup(cmd) // what it left behind would go on without its servers
			if err != nil {
				repeat()
			}
			return exitStatus(err)
		}
	}
}

// goFlags returns the user's GOFLAGS, from the environment or from go env -w.
func goFlags(goCommand string) string {
	out, err := exec.Command(goCommand, "env", "GOFLAGS").Output()
	if err != nil {
		return os.Getenv("GOFLAGS")
	}
	return strings.TrimSpace(string(out))
}

// morePackages returns goFlags with more packages at a time than there are processors: most of our
// tests wait for a lease or a server. A -p of the user's wins, in goFlags as on the command line.
func morePackages(goFlags string, processors int) string {
	return fmt.Sprintf("-p=%d %s", processors+(processors+1)/2, goFlags)
}

func exitStatus(err error) (int, error) {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
			return 1, err
		}
		return 0, nil
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return status(ws.Signal()), nil
	}
	return exit.ExitCode(), nil
}

func status(sig os.Signal) int {
	if s, ok := sig.(syscall.Signal); ok {
		return statusSignal + int(s)
	}
	return 1
}

var reference = regexp.MustCompile(`\$(ONELANE_\w+|\{ONELANE_\w+\})`)

// expand replaces $ONELANE_… and ${ONELANE_…} by what env has, since no shell does it; every
// other dollar stays as it is.
func expand(args []string, env map[string]string) []string {
	expanded := make([]string, len(args))
	for i, arg := range args {
		expanded[i] = reference.ReplaceAllStringFunc(arg, func(ref string) string {
			return os.Expand(ref, func(name string) string {
				if value, ok := env[name]; ok {
					return value
				}
				return os.Getenv(name)
			})
		})
	}
	return expanded
}

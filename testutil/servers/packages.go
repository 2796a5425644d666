package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/onelane/onelane/testutil/internal/server"
)

// manager is a package manager that this process may use.
type manager struct {
	name   func(server.Package) string // what it calls a package
	lines  [][]string                  // the command lines; the last one is completed by the packages' names
	env    []string
	policy string // file that keeps packages from starting their services; empty where there is no such thing
}

func packageManager() (manager, bool) {
	root := os.Geteuid() == 0
	if apt, err := exec.LookPath("apt-get"); err == nil && root {
		return aptGet(apt, "/usr/sbin/policy-rc.d"), true
	}
	if brew, err := exec.LookPath("brew"); err == nil && !root { // Homebrew refuses to run as root
		return homebrew(brew), true
	}
	return manager{}, false
}

func aptGet(path, policy string) manager {
	// A background update of packages holds the lock for a while.
	apt := []string{path, "-o", "DPkg::Lock::Timeout=300"}
	return manager{
		name: func(p server.Package) string { return p.Apt },
		lines: [][]string{
			slices.Concat(apt, []string{"update"}),
			slices.Concat(apt, []string{"install", "-y", "--no-install-recommends"}),
		},
		env:    []string{"DEBIAN_FRONTEND=noninteractive"},
		policy: policy,
	}
}

func homebrew(path string) manager {
	return manager{
		name:  func(p server.Package) string { return p.Brew },
		lines: [][]string{{path, "install"}},
	}
}

func (m manager) install(ctx context.Context, kinds []server.Kind, verbose bool, stderr io.Writer) error {
	var names []string
	for _, kind := range kinds {
		names = append(names, strings.Fields(m.name(kind.Package()))...)
	}
	fmt.Fprintf(stderr, "servers: installing %s\n", strings.Join(names, ", "))
	allow, err := m.forbidServices()
	if err != nil {
		return err
	}
	defer allow()
	for i, line := range m.lines {
		if i == len(m.lines)-1 {
			line = slices.Concat(line, names)
		}
		if err := execute(ctx, line, m.env, verbose, stderr); err != nil {
			return err
		}
	}
	return nil
}

// forbidServices keeps the packages from starting system services, by Debian's policy file, unless
// there is one already.
func (m manager) forbidServices() (allow func(), _ error) {
	if m.policy == "" {
		return func() {}, nil
	}
	f, err := os.OpenFile(m.policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	allow = func() { _ = os.Remove(m.policy) }
	_, err = f.WriteString("#!/bin/sh\nexit 101\n")
	if err = errors.Join(err, f.Close()); err != nil {
		allow()
		return nil, err
	}
	return allow, nil
}

func execute(ctx context.Context, line, env []string, verbose bool, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // killed, it would leave half a package
	cmd.Env = append(os.Environ(), env...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if verbose {
		fmt.Fprintf(stderr, "servers: %s\n", strings.Join(line, " "))
		cmd.Stdout, cmd.Stderr = stderr, stderr
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(line, " "), err, &said)
	}
	return nil
}

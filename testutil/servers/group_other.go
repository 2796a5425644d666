//go:build !unix

package main

import (
	"os"
	"os/exec"
)

func ownGroup(*exec.Cmd) {}

func signalGroup(cmd *exec.Cmd, sig os.Signal) { _ = cmd.Process.Signal(sig) }

func killGroup(*exec.Cmd) {}

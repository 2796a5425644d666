//go:build !linux

package server

func memoryFolder() (string, bool) { return "", false }

//go:build unix

package main

import (
	"os"
	"syscall"
	"unsafe"
)

// sharedCounters are counters in a file that several processes have in their memory.
func sharedCounters(file string, n int) (counters, func(), error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	page, err := syscall.Mmap(int(f.Fd()), 0, 8*n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return unsafe.Slice((*counter)(unsafe.Pointer(&page[0])), n), func() { _ = syscall.Munmap(page) }, nil
}

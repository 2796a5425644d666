//go:build unix

package main

import (
	"os"
	"syscall"
	"unsafe"
)

// sharedCounter is a counter in a file that several processes have in their memory.
func sharedCounter(file string) (*counter, func(), error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	page, err := syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return (*counter)(unsafe.Pointer(&page[0])), func() { _ = syscall.Munmap(page) }, nil
}

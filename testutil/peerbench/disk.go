package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// slowSync is a library that a server loads before all others: its syncs wait, and then are real.
// Both databases sync by these two functions alone. In strace a COMMIT is one fdatasync in
// PostgreSQL and two in MariaDB. No log is opened with O_SYNC or O_DSYNC.
const slowSync = `
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void wait_for_disk(void) {
	struct timespec t = {NANOSECONDS / 1000000000, NANOSECONDS % 1000000000};
	while (nanosleep(&t, &t) == -1 && errno == EINTR) {}
}

int fsync(int file) { wait_for_disk(); return syscall(SYS_fsync, file); }
int fdatasync(int file) { wait_for_disk(); return syscall(SYS_fdatasync, file); }
`

// slowDisk is the environment of a server whose syncs each take so much longer. The library is in
// dir, which it opens to all users.
func slowDisk(dir string, delay time.Duration) ([]string, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("a slower disk is emulated by %s, which is not known on %s: run this on Linux", preload, runtime.GOOS)
	}
	cc, err := compiler()
	if err != nil {
		return nil, err
	}
	library := filepath.Join(dir, "slowsync-"+delay.String()+".so")
	cmd := exec.Command(cc, "-shared", "-fPIC", fmt.Sprintf("-DNANOSECONDS=%d", delay.Nanoseconds()), "-o", library, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(slowSync)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compiling the library that emulates a slower disk: %w (%s); %s said:\n%s", err, installC, cc, out)
	}
	return []string{preload + "=" + library}, errors.Join(os.Chmod(dir, 0o755), os.Chmod(library, 0o755))
}

const (
	preload  = "LD_PRELOAD"
	installC = "Debian, Ubuntu: apt-get install gcc libc6-dev"
)

func compiler() (string, error) {
	for _, name := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("a slower disk is emulated by a library in C, and there is no compiler: install one (%s), or name it in CC", installC)
}

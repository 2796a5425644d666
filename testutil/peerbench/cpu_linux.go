package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const tick = time.Second / 100 // USER_HZ, which Linux shows to all programs

// treeCPU is the CPU time of a process and its children, with those that have ended.
func treeCPU(pid int) (time.Duration, error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	total, found := 0, false
	for _, p := range procs {
		id, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + p.Name() + "/stat")
		if errors.Is(err, os.ErrNotExist) {
			continue // ended just now
		}
		// The name is in brackets, and may have any character; the parent is the 4th field, the times
		// begin at the 14th.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 15 {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		own := id == pid
		if !own && parent != pid {
			continue
		}
		found = found || own
		times := fields[11:13]
		if own {
			times = fields[11:15] // those of its children that have ended too
		}
		for _, t := range times {
			n, _ := strconv.Atoi(t)
			total += n
		}
	}
	if !found {
		return 0, fmt.Errorf("there is no process %d", pid)
	}
	return time.Duration(total) * tick, nil
}

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// childEnv marks a process that only serves.
const childEnv = "ONELANE_SECKILL_CHILD"

// startChildren starts the service in several processes, all on the same Redis and database.
func startChildren(ctx context.Context, o options) (addrs []string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot find this program to start it again: %w", err)
	}
	var stops []func()
	stop = func() {
		var all sync.WaitGroup
		for _, s := range stops {
			all.Go(s)
		}
		all.Wait()
	}
	for range o.procs {
		addr, end, err := startChild(ctx, self, o)
		if err != nil {
			stop()
			return nil, nil, err
		}
		addrs, stops = append(addrs, addr), append(stops, end)
	}
	return addrs, stop, nil
}

// startChild returns when the child has said where it listens. The child ends when its standard
// input ends, and so with this process.
func startChild(ctx context.Context, self string, o options) (addr string, stop func(), err error) {
	cmd := exec.CommandContext(ctx, self, "-redis", o.redis, "-records", o.records, "-etcd", o.etcd, "-zookeeper", o.zookeeper,
		"-db", o.db, "-guarded="+strconv.FormatBool(o.guarded), "-unguarded="+strconv.FormatBool(o.unguarded))
	cmd.Env = append(os.Environ(), childEnv+"=1")
	var said strings.Builder
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("cannot start a service process: %w", err)
	}
	stop = func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("a service process did not start: %s", strings.TrimPrefix(strings.TrimSpace(said.String()), "seckill: "))
	}
	return strings.TrimSpace(line), stop, nil
}

// serveChild serves until standard input ends.
func serveChild(ctx context.Context, o options, stdout io.Writer) error {
	addr, stop, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	if _, err := fmt.Fprintln(stdout, addr); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

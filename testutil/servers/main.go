// Command servers runs another command with private Redis, MariaDB, PostgreSQL, ZooKeeper and etcd
// servers. It installs them first if it may.
//
//	go run ./testutil/servers go test ./...
//
// The servers listen on free loopback ports and end with the command. They keep their data in a
// temporary folder, in memory if TMPDIR names no other.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onelane/onelane/testutil/internal/server"
)

const usage = `Run a command with private Redis, MariaDB, PostgreSQL, ZooKeeper and etcd servers.

Usage: go run ./testutil/servers [flags] COMMAND…

It finds the servers, or installs them (apt as root, or Homebrew), starts them on free loopback ports with data in a temporary
folder (in memory if TMPDIR is not set and /dev/shm has 4 GB), runs COMMAND, ends the servers with it and exits with its status. It exits with 2 when COMMAND could not be run.
go run turns each of these statuses into 1.

COMMAND gets these environment variables, and $NAME or ${NAME} in its arguments stands for their values:

  ONELANE_REDIS            host:port of an empty Redis
  ONELANE_REDIS_SERVER     path of redis-server, for tests that start their own
  ONELANE_MYSQL_DSN        a database on MariaDB, for go-sql-driver/mysql
  ONELANE_POSTGRES_DSN     a database on PostgreSQL, for pgx
  ONELANE_ETCD             host:port of an empty etcd
  ONELANE_ZOOKEEPER        host:port of an empty ZooKeeper
  ONELANE_REQUIRE_SERVERS  1: a test that misses a server fails; empty if -only leaves a server out

It runs other servers than those it finds if these are set: ONELANE_REDIS_SERVER, the path of a redis-server or valkey-server, and
ONELANE_MYSQL_SERVER, that of a mariadbd or of MySQL's mysqld.

go test runs more packages at a time than there are processors, by GOFLAGS=-p=N, unless you give it a -p.

Examples:

  go run ./testutil/servers go test -race ./...
  go run ./testutil/servers go run ./examples/seckill -redis '$ONELANE_REDIS' -db 'postgres:$ONELANE_POSTGRES_DSN'

Flags:
`

// Statuses of our own; COMMAND's is passed on otherwise.
const (
	statusUsage  = 2   // nothing was run
	statusSignal = 128 // plus the signal's number, as shells have it
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin *os.File, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("servers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	only := flags.String("only", "redis,mysql,postgres,etcd,zookeeper", "the `servers` to start, separated by commas")
	noInstall := flags.Bool("no-install", false, "never install anything")
	verbose := flags.Bool("v", false, "say what is done and show what the package manager says")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return statusUsage
	}
	say := func(format string, args ...any) { fmt.Fprintf(stderr, "servers: "+format+"\n", args...) }
	kinds, err := parseKinds(*only)
	if err == nil && flags.NArg() == 0 {
		err = errors.New("no COMMAND given: write what to run with the servers, as in go run ./testutil/servers go test ./... (-h explains)")
	}
	if err != nil {
		say("%v", err)
		return statusUsage
	}

	server.InMemory = true
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	servers, sig, err := prepare(kinds, !*noInstall, *verbose, stderr, signals)
	defer func() { stop(servers) }()
	if sig != nil {
		return status(sig)
	}
	if err != nil {
		say("%v", err)
		return statusUsage
	}
	if *verbose {
		for i, kind := range kinds {
			say("%s runs on %s", kind, servers[i].Addr)
		}
	}
	began := time.Now()
	code, err := command(flags.Args(), environment(kinds, servers), stdin, stdout, stderr, signals)
	if err != nil {
		say("%v", err)
	}
	for _, s := range servers {
		if err := s.Ended(); err != nil {
			say("a server ended while COMMAND ran, which may explain a failure: %v", err)
		}
	}
	if *verbose {
		say("the command ended with status %d after %v", code, time.Since(began).Round(time.Millisecond))
	}
	return code
}

// prepare installs and starts the servers. A signal ends it, and is returned; later ones are for
// COMMAND.
func prepare(kinds []server.Kind, may, verbose bool, stderr io.Writer, signals <-chan os.Signal) (servers []*server.Server, sig os.Signal, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err = install(ctx, kinds, may, verbose, stderr); err == nil {
			servers, err = start(ctx, kinds)
		}
	}()
	select {
	case <-done:
	case sig = <-signals:
		cancel()
		<-done
	}
	return servers, sig, err
}

func parseKinds(list string) ([]server.Kind, error) {
	var kinds []server.Kind
	for name := range strings.SplitSeq(list, ",") {
		kind := server.Kind(strings.TrimSpace(name))
		if !slices.Contains(server.Kinds, kind) {
			return nil, fmt.Errorf("-only %s: there is no server %q: use some of %v, separated by commas", list, kind, server.Kinds)
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds, nil
}

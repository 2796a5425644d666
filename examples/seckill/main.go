// Command seckill is a flash sale on real sockets: many buyers, few units, impatient clients that
// click twice and retry. A line of the kit gives each buyer one order, and the sale is declared as
// data. With -guarded the sale is the naive code that every tutorial writes, under a lock.
//
//	go run ./examples/seckill              # embedded Redis and SQLite: nothing to install
//	go run ./examples/seckill -guarded     # the tutorial's code, under a lock
//	go run ./examples/seckill -unguarded   # the tutorial's code, without the kit
//	go run ./examples/seckill -serve :8080 # all three side by side, on a page to watch
//
// It exits with 1 when units were oversold or a buyer got two orders, and with 2 when it could not
// run.
package main

import (
	"context"
	"encoding/json"
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
)

// options are the command line.
type options struct {
	buyers, stock, submits, clients, procs int
	redis, records, etcd, zookeeper        string
	db, serve                              string
	json, guarded, unguarded               bool

	// Not on the command line: the page sets them.
	nodeTimeout time.Duration
	over        time.Duration // the time in which the buyers arrive; 0 for all at once
	newQuorum   bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main with everything it touches passed in; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return fail(stderr, err)
	case os.Getenv(childEnv) != "":
		if err := serveChild(ctx, o, stdout); err != nil {
			return fail(stderr, err)
		}
		return 0
	}
	if o.serve != "" {
		if err := serve(ctx, o, stdout); err != nil {
			return fail(stderr, err)
		}
		return 0
	}
	r, err := sale(ctx, o, stderr)
	if err != nil {
		return fail(stderr, err)
	}
	if o.json {
		_ = json.NewEncoder(stdout).Encode(r)
	} else {
		r.print(stdout)
	}
	if !r.OK {
		return 1
	}
	return 0
}

// fail says in one sentence why the sale could not run.
func fail(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "seckill: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	return 2
}

func parse(args []string, stdout io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("seckill", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.IntVar(&o.buyers, "buyers", 2000, "how many people want one unit each")
	f.IntVar(&o.stock, "stock", 100, "how many units there are")
	f.IntVar(&o.submits, "submits", 3, "how often each buyer submits: double clicks at once, the last as a retry after the answer")
	f.IntVar(&o.clients, "clients", 100, "how many buyers send requests at the same time")
	f.IntVar(&o.procs, "procs", 1, "how many service processes share the Redis and the database")
	f.StringVar(&o.redis, "redis", "", "`host:port[,host:port…]` of Redis; embedded by default")
	f.StringVar(&o.records, "records", "", "`host:port` of the Redis for recorded answers, if -redis names several masters; embedded by default")
	f.StringVar(&o.etcd, "etcd", "", "`host:port[,host:port…]` of etcd, instead of Redis")
	f.StringVar(&o.zookeeper, "zookeeper", "", "`host:port[,host:port…]` of ZooKeeper, instead of Redis")
	f.StringVar(&o.db, "db", "", "`sqlite:FILE|mysql:DSN|postgres:DSN`; a temporary SQLite file by default")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	f.BoolVar(&o.guarded, "guarded", false, "read, check and write the stock under a lock, instead of a declared sale")
	f.BoolVar(&o.unguarded, "unguarded", false, "read, check and write the stock without the kit")
	f.StringVar(&o.serve, "serve", "", "show a page at this `address`, such as :8080, where the three kinds of sales run side by side")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(stdout, "A flash sale: many buyers, few units, clients that click twice and retry.\n\nUsage: seckill [flags]")
		f.SetOutput(stdout)
		f.PrintDefaults()
	}
	switch {
	case err != nil:
		return o, err
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: there are only flags, see -h", f.Arg(0))
	}
	named := 0
	for _, servers := range []string{o.redis, o.etcd, o.zookeeper} {
		if servers != "" {
			named++
		}
	}
	if named > 1 {
		return o, errors.New("name one kind of server for the locks: -redis, -etcd or -zookeeper")
	}
	if o.guarded && o.unguarded {
		return o, errors.New("-guarded and -unguarded are two kinds of sales: choose one")
	}
	if strings.Contains(o.redis, ",") && !o.guarded && o.serve == "" {
		return o, errors.New("several masters of -redis keep locks only, and a declared sale needs no lock: add -guarded, or name one Redis")
	}
	if o.records != "" && !strings.Contains(o.redis, ",") {
		return o, errors.New("-records is for several masters of -redis, which keep locks only: leave it out")
	}
	if strings.Contains(o.records, ",") {
		return o, fmt.Errorf("-records %q: name one Redis, because several masters keep locks only", o.records)
	}
	if o.serve != "" && (o.etcd != "" || o.zookeeper != "") {
		return o, errors.New("-serve shows Redis masters that fail: leave -etcd and -zookeeper out")
	}
	if o.serve != "" && (o.db != "" || o.procs > 1 || o.json || o.guarded || o.unguarded) {
		return o, errors.New("-serve runs all services in one process, on SQLite files of its own: leave -db, -procs, -json, -guarded and -unguarded out")
	}
	var ofPage []string
	f.Visit(func(set *flag.Flag) {
		if slices.Contains([]string{"buyers", "stock", "submits", "clients"}, set.Name) {
			ofPage = append(ofPage, "-"+set.Name)
		}
	})
	if o.serve != "" && ofPage != nil {
		return o, fmt.Errorf("with -serve the page has the numbers of a sale: leave %s out", strings.Join(ofPage, ", "))
	}
	return o, o.valid()
}

// valid keeps the numbers within what one machine can do.
func (o *options) valid() error {
	for _, n := range []struct {
		name     string
		v, atMax int
	}{{"buyers", o.buyers, 1_000_000}, {"stock", o.stock, 1_000_000}, {"submits", o.submits, 100}, {"clients", o.clients, 1000}, {"procs", o.procs, 32}} {
		if n.v < 1 || n.v > n.atMax {
			return fmt.Errorf("-%s %d: it must be from 1 to %d", n.name, n.v, n.atMax)
		}
	}
	return nil
}

// Command shop is a complete sale with payment. Three instances behind a balancer reserve units,
// charge a payment provider, and confirm or cancel orders. Customers click twice and retry. Instances
// are killed in the middle of requests, and the provider is away for a while. At the end the books
// balance: each sold unit was paid for once, and each payment has its order.
//
//	go run ./examples/shop              # embedded Redis and SQLite: nothing to install
//	go run ./examples/shop -kills 200
//	go run ./examples/shop -stay        # and then serve, to try it by hand
//
// It exits with 1 if the books are wrong, and with 2 if it could not run. README.md says which file to
// copy for what.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	config
	customers, kills int
	stay, verbose    bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main with everything it touches passed in. It returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "shop:", err)
		return 2
	}
	if o.addr != "" {
		if os.Getenv(instanceEnv) != "" {
			ctx = untilEOF(ctx, os.Stdin)
		}
		err = serve(ctx, o.config, func(addr string) { fmt.Fprintln(stdout, addr) })
	} else {
		var ok bool
		if ok, err = play(ctx, o, stdout, stderr); err == nil && !ok {
			fmt.Fprintln(stdout, "BROKEN: the books are wrong.")
			return 1
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "shop:", strings.ReplaceAll(err.Error(), "\n", "; "))
		return 2
	}
	return 0
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("shop", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.customers, "customers", 100, "how many customers come in the ordinary sale, from 1 to 10000")
	f.IntVar(&o.kills, "kills", 10, "how many instances are killed after that, from 0 to 10000")
	f.BoolVar(&o.stay, "stay", false, "serve until Ctrl-C when the show is over")
	f.BoolVar(&o.verbose, "v", false, "show the logs of the instances")
	f.StringVar(&o.redis, "redis", "", "`host:port` of an empty Redis; embedded by default")
	f.StringVar(&o.db, "db", "", "`sqlite:FILE|mysql:DSN|postgres:DSN`; a temporary SQLite file by default")
	f.StringVar(&o.addr, "serve", "", "be one instance at this `address`; it needs -redis, -db and -provider")
	f.StringVar(&o.name, "name", "shop", "the name of the instance")
	f.StringVar(&o.provider, "provider", "", "`URL` of the payment provider of an instance")
	f.DurationVar(&o.hold, "hold", 3*time.Second, "how long a buyer has to pay")
	f.DurationVar(&o.lease, "lease", time.Second, "how long the claim of an instance outlives it; in production 10s")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "how long the provider may take to answer")
	f.DurationVar(&o.sweep, "sweep", 200*time.Millisecond, "how often reservations that expired are settled")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q: there are only flags, see -h", f.Arg(0))
	case o.customers < 1 || o.customers > 10_000 || o.kills < 0 || o.kills > 10_000:
		err = errors.New("-customers must be from 1 to 10000, and -kills from 0 to 10000")
	case o.addr != "" && (o.redis == "" || o.db == "" || o.provider == ""):
		err = errors.New("-serve needs -redis, -db and -provider")
	case o.addr == "" && o.provider != "":
		err = errors.New("-provider is for -serve: the show has a provider of its own")
	}
	return o, err
}

// untilEOF returns a context that ends with a reader, too: an instance ends with its fleet.
func untilEOF(ctx context.Context, r io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, r)
		cancel()
	}()
	return ctx
}

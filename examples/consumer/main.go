// Command consumer charges the orders of a Redis stream while its processes are killed with SIGKILL,
// between the charge and the acknowledgement of its message. The queue delivers such a message
// again. Nobody is charged twice, no message is lost, and what nobody can know is reported.
//
//	go run ./examples/consumer               # embedded Redis: nothing to install
//	go run ./examples/consumer -kills 1000
//	go run ./examples/consumer -unprotected  # the same without the kit
//
// It exits with 1 if somebody was charged twice or an order is missing, and with 2 if it could not
// run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main with everything it touches passed in. It returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if os.Getenv(childEnv) != "" {
		if err := consumeAsChild(ctx); err != nil {
			fmt.Fprintln(stderr, "consumer: a process:", err)
			return 2
		}
		return 0
	}
	f := flag.NewFlagSet("consumer", flag.ContinueOnError)
	f.SetOutput(stderr)
	kills := f.Int("kills", 40, "how many processes are killed, from 2 to 10000")
	unprotected := f.Bool("unprotected", false, "charge without the kit")
	addr := f.String("redis", "", "host:port of an empty Redis; the default is an embedded one")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case f.NArg() > 0 || *kills < 2 || *kills > 10_000:
		fmt.Fprintln(stderr, "consumer: -kills must be from 2 to 10000, and there are no other arguments; see -h")
		return 2
	}
	ok, err := play(ctx, *addr, *kills, *unprotected, stdout)
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "consumer:", err)
		return 2
	case !ok:
		fmt.Fprintln(stdout, "BROKEN: somebody was charged twice, or an order is missing.")
		return 1
	}
	fmt.Fprintln(stdout, "OK: nobody was charged twice, and no order is missing.")
	return 0
}

// play runs the acts. It returns false if an invariant did not hold.
func play(ctx context.Context, addr string, kills int, unprotected bool, out io.Writer) (bool, error) {
	w, err := newWorld(addr)
	if err != nil {
		return false, err
	}
	defer w.close()
	acts := []act{
		{Mode: modeReport, Title: "1. Nobody can be asked: an order whose outcome is unknown goes to a human"},
		{Mode: modeAsk, Title: "2. The provider can be asked: every order is finished"},
	}
	if unprotected {
		acts = []act{{Mode: modeUnprotected, Title: "Without the kit: a message that comes again is charged again"}}
	}
	ok := true
	for _, a := range acts {
		held, err := w.perform(ctx, a, kills/len(acts), out)
		if err != nil {
			return false, err
		}
		ok = ok && held
	}
	return ok, nil
}

// Command idempotentapi is a payment API whose clients click twice and retry over a network that
// loses answers. It shows what they see when the service dies between the charge and its answer. It
// does so with defaults, with Recover and a payment provider, and with the charge and its result in
// one database transaction.
//
//	go run ./examples/idempotentapi   # embedded Redis and SQLite: nothing to install
//
// It exits with 1 if somebody was charged twice or not at all, and with 2 if it could not run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
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
		if err := serveChild(ctx, stdout); err != nil {
			fmt.Fprintln(stderr, "idempotentapi: service:", err)
			return 2
		}
		return 0
	}
	f := flag.NewFlagSet("idempotentapi", flag.ContinueOnError)
	f.SetOutput(stderr)
	customers := f.Int("customers", 100, "how many people pay, from 1 to 1000")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case f.NArg() > 0 || *customers < 1 || *customers > 1000:
		fmt.Fprintln(stderr, "idempotentapi: -customers must be from 1 to 1000, and there are no other arguments; see -h")
		return 2
	}
	ok, err := play(ctx, *customers, stdout)
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "idempotentapi:", strings.ReplaceAll(err.Error(), "\n", "; "))
		return 2
	case !ok:
		fmt.Fprintln(stdout, "BROKEN: somebody was charged twice, or not at all.")
		return 1
	}
	fmt.Fprintln(stdout, "OK: nobody was charged twice.")
	return 0
}

// play starts the servers and runs the acts. It returns false if an invariant did not hold.
func play(ctx context.Context, customers int, out io.Writer) (ok bool, err error) {
	w, err := newWorld()
	if err != nil {
		return false, err
	}
	defer w.close()
	ok = true
	for _, act := range []func(context.Context, *world, io.Writer) (bool, error){
		func(ctx context.Context, w *world, out io.Writer) (bool, error) {
			return badNetwork(ctx, w, out, customers)
		},
		otherAmount,
		func(ctx context.Context, w *world, out io.Writer) (bool, error) {
			return crash(ctx, w, out, "/payments", http.StatusConflict,
				"3. The service dies between the charge and its answer: the retry gets \"outcome unknown\"")
		},
		func(ctx context.Context, w *world, out io.Writer) (bool, error) {
			return crash(ctx, w, out, "/payments/recovered", http.StatusCreated,
				"4. The same, with Recover: the service asks the payment provider, and the retry gets the charge")
		},
		func(ctx context.Context, w *world, out io.Writer) (bool, error) {
			return crash(ctx, w, out, "/payments/once", http.StatusCreated,
				"5. The same, with gormlock.Once and RunAgain: the charge and its result are in one transaction")
		},
	} {
		held, err := act(ctx, w, out)
		if err != nil {
			return false, err
		}
		ok = ok && held
		fmt.Fprintln(out)
	}
	return ok, nil
}

// Command grab lets many couriers grab the same orders at the same time, over real sockets: each
// order goes to one of them. The handler is the naive one, read, check, write; one line of the kit
// makes it right.
//
//	go run ./examples/grab              # embedded Redis and SQLite: nothing to install
//	go run ./examples/grab -unguarded   # the same service without that line
//
// It exits with 1 when an order went to two couriers or to none, and with 2 when it could not run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
)

type options struct {
	orders, couriers int
	unguarded        bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main with everything it touches passed in; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	f := flag.NewFlagSet("grab", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.orders, "orders", 40, "how many orders there are, from 1 to 1000")
	f.IntVar(&o.couriers, "couriers", 25, "how many couriers want each of them, from 1 to 200")
	f.BoolVar(&o.unguarded, "unguarded", false, "run the service without the kit's line")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case f.NArg() > 0 || o.orders < 1 || o.orders > 1000 || o.couriers < 1 || o.couriers > 200:
		fmt.Fprintln(stderr, "grab: -orders must be from 1 to 1000, -couriers from 1 to 200, and there are no other arguments; see -h")
		return 2
	}
	ok, err := play(ctx, o, stdout)
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "grab:", strings.ReplaceAll(err.Error(), "\n", "; "))
		return 2
	case !ok:
		return 1
	}
	return 0
}

// play starts the service and lets the couriers at it; false when the books do not add up.
func play(ctx context.Context, o options, out io.Writer) (ok bool, err error) {
	server, err := miniredis.Run()
	if err != nil {
		return false, fmt.Errorf("cannot start the embedded Redis: %w", err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	locker, err := core.New(redisbackend.New(client))
	if err != nil {
		return false, err
	}
	defer locker.Close()
	db, closeDB, err := openDB(o.orders)
	if err != nil {
		return false, err
	}
	defer closeDB()
	s := httptest.NewServer((&service{db: db, locker: locker, unguarded: o.unguarded}).routes())
	defer s.Close()
	with := "with the kit's line"
	if o.unguarded {
		with = "WITHOUT the kit's line"
	}
	fmt.Fprintf(out, "%d orders, %d couriers want each of them, %s\n\n", o.orders, o.couriers, with)
	began := time.Now()
	t := grabAll(ctx, o, s.URL)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	fmt.Fprintf(out, "  requests  %6d  in %.2f s\n", t.requests, time.Since(began).Seconds())
	fmt.Fprintf(out, "   grabbed  %6d  answered with 201\n", t.grabbed)
	fmt.Fprintf(out, "     taken  %6d  came too late\n", t.taken)
	fmt.Fprintf(out, "      busy  %6d  came while another courier had the lock\n", t.busy)
	fmt.Fprintf(out, "    errors  %6d  %s\n\n", t.failed, t.lastError)
	b, err := audit(db)
	if err != nil {
		return false, err
	}
	fmt.Fprintf(out, "The database says: %d orders went to one courier, %d to several, %d to none.\n", b.once, b.several, b.none)
	if ok = b.several == 0 && b.none == 0 && t.failed == 0 && t.grabbed == o.orders; ok {
		fmt.Fprintln(out, "OK: every order went to one courier.")
	} else {
		fmt.Fprintln(out, "BROKEN: the books do not add up.")
	}
	return ok, nil
}

// tally counts the answers that the couriers got.
type tally struct {
	requests, grabbed, taken, busy, failed int
	lastError                              string
}

// grabAll offers one order after the other to all couriers at once.
func grabAll(ctx context.Context, o options, url string) tally {
	var mu sync.Mutex
	var t tally
	client := newClient(o.couriers)
	defer client.CloseIdleConnections()
	for order := 1; order <= o.orders && ctx.Err() == nil; order++ {
		var couriers sync.WaitGroup
		for courier := 1; courier <= o.couriers; courier++ {
			couriers.Go(func() {
				status, code, err := grab(ctx, client, url, order, courier)
				mu.Lock()
				defer mu.Unlock()
				t.requests++
				switch {
				case err != nil:
					t.failed, t.lastError = t.failed+1, err.Error()
				case status == 201:
					t.grabbed++
				case code == "taken":
					t.taken++
				case code == "lock_busy":
					t.busy++
				default:
					t.failed, t.lastError = t.failed+1, fmt.Sprintf("%d %s", status, code)
				}
			})
		}
		couriers.Wait()
	}
	return t
}

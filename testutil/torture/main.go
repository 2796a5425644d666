// Command torture runs lock libraries, ours included, under the same faults, and counts what went
// wrong. docs/torture.md has a run and explains it.
//
//	go run -C testutil/torture . -rounds 1
//	go run -C testutil/torture . -seed 7 -only '^redislock/late$'
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
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"
)

// grace is how long after a fault and a whole TTL a key may still be taken, and is not stuck. A master
// of a quorum has no vote in its first 10 s.
const grace = 15 * time.Second

func main() {
	if isWorker() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("torture", flag.ContinueOnError)
	flags.SetOutput(stderr)
	seed := flags.Uint64("seed", 1, "the `seed` of the first round; each further round has the next one")
	only := flags.String("only", "", "what matches this `regexp` of LIBRARY/FAULT, such as ^redislock/late$")
	rounds := flags.Int("rounds", 0, "how often each library meets each fault; 0 is 1, or 10 with -long")
	long := flags.Bool("long", false, "also storms, and kill leaders of three etcd and ZooKeeper servers")
	parallel := flags.Int("parallel", 6, "how many trials run at once")
	asJSON := flags.Bool("json", false, "write JSON instead of tables")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if *rounds == 0 {
		*rounds = 1
		if *long {
			*rounds = 10
		}
	}
	if flags.NArg() > 0 || *rounds < 0 || *parallel < 1 {
		return fmt.Errorf("-rounds %d -parallel %d, and arguments %q: none of these may be negative, and there are no arguments", *rounds, *parallel, flags.Args())
	}
	results, err := runAll(ctx, wanted, *seed, *rounds, *parallel, *long, stderr)
	if err != nil {
		return err
	}
	if *asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(results)
	} else {
		table(stdout, results)
		legend(stdout, results)
		fmt.Fprintf(stdout, "\nSeeds %d to %d.\n\n%s\n", *seed, *seed+uint64(*rounds)-1, versions())
	}
	return errors.Join(err, broken(results))
}

// runAll tries each library under each fault in each round.
func runAll(ctx context.Context, wanted *regexp.Regexp, seed uint64, rounds, parallel int, long bool, progress io.Writer) ([]result, error) {
	dir, err := os.MkdirTemp("", "onelane-torture-")
	if err != nil {
		return nil, err
	}
	p := &pool{dir: dir, grace: grace, shared: make(map[topology]*site)}
	defer p.close()
	type pairing struct {
		library library
		fault   fault
	}
	var pairings []pairing
	for _, l := range libraries {
		for _, f := range faults {
			takesLong := f.name == "storm" || f.name == "fail-over" && l.servers != oneRedis
			if f.has(l.servers) && wanted.MatchString(l.name+"/"+f.name) && (long || !takesLong) {
				pairings = append(pairings, pairing{l, f})
			}
		}
	}
	if len(pairings) == 0 {
		return nil, fmt.Errorf("-only %s matches nothing", wanted)
	}
	results := make([]result, len(pairings))
	var mu sync.Mutex // guards results, errs and progress
	var errs []error
	var all sync.WaitGroup
	free := make(chan struct{}, parallel)
	for i, pair := range pairings {
		name := pair.library.name + "/" + pair.fault.name
		results[i] = result{Library: pair.library.name, Fault: pair.fault.name}
		for s := seed; s < seed+uint64(rounds); s++ {
			free <- struct{}{}
			all.Go(func() {
				defer func() { <-free }()
				if ctx.Err() != nil {
					return
				}
				h, err := runTrial(ctx, p, pair.library, pair.fault, s)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					errs = append(errs, fmt.Errorf("%s, seed %d: %w", name, s, err))
					return
				}
				v := check(h)
				for i, text := range v.Findings {
					v.Findings[i] = fmt.Sprintf("%s, seed %d: %s", name, s, text)
					fmt.Fprintln(progress, v.Findings[i])
				}
				results[i].add(v)
			})
		}
	}
	all.Wait()
	return results, errors.Join(append(errs, ctx.Err())...)
}

// broken returns an error if one of our own locks has not kept what docs/guarantees.md promises.
func broken(results []result) error {
	var errs []error
	for _, r := range results {
		i := slices.IndexFunc(libraries, func(l library) bool { return l.name == r.Library })
		if i < 0 || libraries[i].exclusive == nil {
			continue
		}
		if r.Double > 0 && libraries[i].exclusive(r.Fault) {
			errs = append(errs, fmt.Errorf("%s/%s: %d double holders, and it promises one holder", r.Library, r.Fault, r.Double))
		}
		if r.LostFenced > 0 || r.Back > 0 || r.Stuck > 0 {
			errs = append(errs, fmt.Errorf("%s/%s: %d updates lost with a fence, %d tokens that went back, %d stuck keys; it promises none",
				r.Library, r.Fault, r.LostFenced, r.Back, r.Stuck))
		}
	}
	return errors.Join(errs...)
}

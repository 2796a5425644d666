// Command peerbench measures the kit beside other lock libraries, on the same servers in one run.
// See README.md.
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
	"runtime"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/onelane/onelane/testutil/internal/server"
)

// all are the scenarios, in the order of the report.
func all(disk time.Duration) []scenario {
	scenarios := append([]scenario{
		ownKeys(1), ownKeys(4), ownKeys(16), ownKeys(64), ownKeys(256), far(time.Millisecond),
		hotKey(64), hotProcesses(4, 16),
		waiters("waiters", 1, 128), waiters("waiters-processes", 4, 32),
		masters(16), masters(64), cost(), held(10_000), held(100_000),
		idempotent(64),
		backends(1, false), backends(64, false), backends(64, true),
		hotRow(database{kind: server.Postgres}, 256), hotRow(database{kind: server.MySQL}, 256),
		hotRow(database{kind: server.Postgres, durable: true}, 256), hotRow(database{kind: server.MySQL, durable: true}, 256),
		hotRow(database{server.Postgres, true, disk}, 256), hotRow(database{server.MySQL, true, disk}, 256),
		overhead(database{kind: server.Postgres}), overhead(database{kind: server.MySQL}),
	}, ordinary()...)
	for _, kind := range []server.Kind{server.Postgres, server.MySQL} {
		scenarios = append(scenarios, declaredSales(database{kind: kind})...)
		scenarios = append(scenarios, declaredSales(database{kind: kind, durable: true}, "")...)
		scenarios = append(scenarios, declaredSales(database{kind, true, disk}, "")...)
	}
	return scenarios
}

func main() {
	if isChild() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "peerbench:", err)
		os.Exit(1)
	}
}

// isChild does the task of a child process, and reports whether this is one.
func isChild() bool {
	if len(os.Args) < 2 {
		return false
	}
	do := map[string]func(context.Context, []string, io.Reader, io.Writer) error{childCommand: child, shopCommand: shopChild}[os.Args[1]]
	if do == nil {
		return false
	}
	if err := do(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peerbench: a child process:", err)
		os.Exit(1)
	}
	return true
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("peerbench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	only := flags.String("only", "", "the scenarios whose name matches this `regexp`")
	rounds := flags.Int("rounds", 5, "how often each contender is asked; the table has medians")
	d := flags.Duration("time", 500*time.Millisecond, "how long each is asked in a round")
	disk := flags.Duration("disk", time.Millisecond, "how much longer each sync to disk takes in the hot-row-…-disk scenarios, emulated")
	who := flags.String("contender", "", "only the contenders whose name matches this `regexp`, for a profile; without the targets that are about others")
	profile := flags.String("cpuprofile", "", "write a CPU profile of the scenarios to this `file`, for go tool pprof")
	flags.StringVar(&before, "before", "", "the `binary` of peerbench with another version of the kit, one more contender of the ordinary-… scenarios")
	asJSON := flags.Bool("json", false, "write JSON instead of a table")
	list := flags.Bool("list", false, "name the scenarios, and end")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: -only names scenarios", flags.Arg(0))
	}
	b := &bench{}
	defer b.close()
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if b.contender, err = regexp.Compile(*who); err != nil {
		return fmt.Errorf("-contender: %w", err)
	}
	if *rounds < 1 || *d <= 0 || *disk <= 0 {
		return fmt.Errorf("-rounds %d -time %v -disk %v: they must be positive", *rounds, *d, *disk)
	}
	var results []result
	for _, s := range all(*disk) {
		switch {
		case !wanted.MatchString(s.name):
			continue
		case *list:
			fmt.Fprintf(stdout, "%-16s %s\n", s.name, s.about)
			continue
		case len(results) == 0:
			if err := exclusions(ctx, b, stderr); err != nil {
				return err
			}
			stop, err := profiling(*profile)
			if err != nil {
				return err
			}
			defer stop()
		}
		r, err := s.run(ctx, b, *rounds, *d, stderr)
		if err != nil {
			return err
		}
		results = append(results, r)
		if !*asJSON {
			r.markdown(stdout)
		}
	}
	switch {
	case *list:
		return nil
	case len(results) == 0:
		return fmt.Errorf("-only %s: no scenario has such a name; -list shows them", *only)
	case *asJSON:
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(report{machine(), *rounds, d.String(), results})
	}
	fmt.Fprintf(stdout, "\n%s; medians of %d rounds of %v, least and most in brackets.\n", machine(), *rounds, *d)
	return nil
}

// profiling writes a CPU profile until it is stopped, if a file is named.
func profiling(name string) (stop func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); _ = f.Close() }, pprof.StartCPUProfile(f)
}

// report is the JSON.
type report struct {
	Machine string   `json:"machine"`
	Rounds  int      `json:"rounds"`
	Time    string   `json:"time"`
	Results []result `json:"results"`
}

func machine() string {
	return fmt.Sprintf("%s %s/%s, %d CPUs shared with the servers", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
}

// exclusions stops the run when a peer does not lock.
func exclusions(ctx context.Context, b *bench, progress io.Writer) error {
	addr, err := b.redis()
	if err != nil {
		return err
	}
	fmt.Fprintln(progress, "exclusion …")
	for _, p := range peers {
		if err := exclusion(ctx, p, addr); err != nil {
			return err
		}
	}
	return nil
}

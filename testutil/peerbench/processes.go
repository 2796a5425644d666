package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// childCommand is the first argument of this binary when it is one of several processes of a
// scenario.
const childCommand = "child-of-peerbench"

// childReport is what a child writes when it is done.
type childReport struct {
	Ops   int                    `json:"ops"`
	Total int64                  `json:"total"` // also those that ended after the time
	Waits *hdrhistogram.Snapshot `json:"waits"`
	Held  time.Duration          `json:"held"`
	Took  time.Duration          `json:"took"`
}

// order is the task of a child.
type order struct {
	peer, addr, key, shared string
	goroutines              int
	keys, pick              int // each lock is on pick of keys; 0 is 1
	hold, think, d          time.Duration
	each                    int    // so many locks of each goroutine, instead of a time
	binary                  string // of another version, or empty
}

func (o order) args() []string {
	return []string{childCommand, "-peer", o.peer, "-redis", o.addr, "-key", o.key, "-shared", o.shared, "-goroutines", strconv.Itoa(o.goroutines),
		"-hold", o.hold.String(), "-time", o.d.String(), "-each", strconv.Itoa(o.each),
		"-keys", strconv.Itoa(max(o.keys, 1)), "-pick", strconv.Itoa(max(o.pick, 1)), "-think", o.think.String()}
}

// child is one process: it says that it is ready, waits until its standard input is closed, and
// begins.
func child(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	var o order
	flags := flag.NewFlagSet(childCommand, flag.ContinueOnError)
	flags.StringVar(&o.peer, "peer", "", "")
	flags.StringVar(&o.addr, "redis", "", "")
	flags.StringVar(&o.key, "key", "", "")
	flags.StringVar(&o.shared, "shared", "", "")
	flags.IntVar(&o.goroutines, "goroutines", 1, "")
	flags.IntVar(&o.each, "each", 0, "")
	flags.IntVar(&o.keys, "keys", 1, "")
	flags.IntVar(&o.pick, "pick", 1, "")
	flags.DurationVar(&o.think, "think", 0, "")
	flags.DurationVar(&o.hold, "hold", 0, "")
	flags.DurationVar(&o.d, "time", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	p, err := peerNamed(o.peer)
	if err != nil {
		return err
	}
	cs, unmap, err := sharedCounters(o.shared, o.keys)
	if err != nil {
		return err
	}
	defer unmap()
	l, closeIt, err := p.open(o.addr)
	if err != nil {
		return err
	}
	defer closeIt()
	if _, err := cycle(ctx, l, "warm-up", nil); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "ready")
	if _, err := io.Copy(io.Discard, stdin); err != nil {
		return err
	}
	var held atomic.Int64
	op := func(ctx context.Context, _ int) (time.Duration, error) {
		if o.think > 0 {
			time.Sleep(o.think/2 + rand.N(o.think))
		}
		picked := rand.Perm(o.keys)[:o.pick]
		slices.Sort(picked)
		keys := make([]string, o.pick)
		for i, k := range picked {
			keys[i] = fmt.Sprint(o.key, ":", k)
		}
		return cycleAll(ctx, l, keys, func() {
			began := time.Now()
			for _, k := range picked {
				cs[k].increment(nil)
			}
			if o.hold > 0 {
				time.Sleep(o.hold)
				held.Add(int64(time.Since(began)))
			}
		})
	}
	t, err := tally{}, error(nil)
	if o.each > 0 {
		t, err = count(ctx, o.goroutines, o.each, op)
	} else {
		t, err = load(ctx, o.d, o.goroutines, op)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(childReport{t.ops, t.held, t.waits.Export(), time.Duration(held.Load()), t.time})
}

// processes runs several children at once, and checks that their locks excluded each other.
func processes(ctx context.Context, n int, o order) ([]childReport, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	shared, err := os.CreateTemp("", "peerbench-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(shared.Name())
	defer shared.Close()
	o.keys, o.pick = max(o.keys, 1), max(o.pick, 1)
	if err := shared.Truncate(8 * int64(o.keys)); err != nil {
		return nil, err
	}
	o.shared = shared.Name()
	cs, unmap, err := sharedCounters(o.shared, o.keys)
	if err != nil {
		return nil, err
	}
	defer unmap()

	reports, err := children[childReport](ctx, n, func(int) *exec.Cmd { return exec.Command(cmp.Or(o.binary, binary), o.args()...) }, nil)
	if err != nil {
		return nil, err
	}
	total := int64(0)
	for _, r := range reports {
		total += r.Total
	}
	return reports, cs.check(total * int64(o.pick))
}

// children starts processes, lets them begin at once when all are ready, and returns what they
// report. It calls begins before.
func children[R any](ctx context.Context, n int, command func(i int) *exec.Cmd, begins func()) ([]R, error) {
	var starts []io.Closer
	var outs []*json.Decoder
	for i := range n {
		cmd := command(i)
		cmd.Stderr = os.Stderr
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			return nil, err
		}
		kill := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
		defer func() { kill(); _, _ = cmd.Process.Kill(), cmd.Wait() }()
		var ready [6]byte
		if _, err := io.ReadFull(out, ready[:]); err != nil || string(ready[:]) != "ready\n" {
			return nil, fmt.Errorf("a child process is not ready but %q: %v", ready, err)
		}
		starts, outs = append(starts, in), append(outs, json.NewDecoder(out))
	}
	if begins != nil {
		begins()
	}
	for _, in := range starts {
		_ = in.Close()
	}
	reports := make([]R, n)
	for i, out := range outs {
		if err := out.Decode(&reports[i]); err != nil {
			return nil, fmt.Errorf("a child process did not report: %w", err)
		}
	}
	return reports, nil
}

// merged are the waits of all processes.
func merged(reports []childReport) *hdrhistogram.Histogram {
	waits := newWaits()
	for _, r := range reports {
		waits.Merge(hdrhistogram.Import(r.Waits))
	}
	return waits
}

// jain is the fairness index (Jain, Chiu, Hawe 1984): 1 when all have the same, 1/n when one has
// everything.
func jain(reports []childReport) float64 {
	sum, squares := 0.0, 0.0
	for _, r := range reports {
		sum, squares = sum+float64(r.Ops), squares+float64(r.Ops)*float64(r.Ops)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(reports)) * squares)
}

// hotProcesses: goroutines of several processes want the same key.
func hotProcesses(n, goroutines int) scenario {
	return scenario{
		name:    "hot-processes",
		about:   fmt.Sprintf("%d processes with %d goroutines each want one key. Jain's index says how evenly the processes got it: 1 is even.", n, goroutines),
		columns: []column{{"per s", false}, {"p50 ms", true}, {"p99 ms", true}, {"longest ms", true}, {"Jain", false}},
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			var cs []contender
			for _, p := range waiting() {
				cs = append(cs, contender{name: p.name, kind: p.kind, run: func(ctx context.Context, d time.Duration) (sample, error) {
					if !b.short {
						d *= 4 // a turn of a process is a tenth of a second
					}
					if err := flush(ctx, addr); err != nil {
						return nil, err
					}
					reports, err := processes(ctx, n, order{peer: p.name, addr: addr, key: "hot", goroutines: goroutines, d: d})
					if err != nil {
						return nil, err
					}
					t := tally{time: d, waits: merged(reports)}
					for _, r := range reports {
						t.ops += r.Ops
					}
					return sample{t.perSecond(), t.wait(50), t.wait(99), t.wait(100), jain(reports)}, nil
				}})
			}
			return cs, nil
		},
		targets: []target{
			{"at least 3 × the best peer", timesBest("onelane", "per s", false), 3, 0},
			{"p99 wait at most 1/10 of the best peer's", timesBest("onelane", "p99 ms", true), 0, 0.1},
			{"every process gets its share: Jain at least 0.9", func(r result) float64 { return r.of("onelane", "Jain") }, 0.9, 0},
		},
	}
}

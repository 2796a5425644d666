package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"gorm.io/gorm"

	declared "github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/testutil/internal/server"
)

// shopCommand is the first argument of this binary when it is one of the processes of a sale.
const shopCommand = "shop-of-peerbench"

// shop is the buyers of one process, with their own pool.
type shop struct {
	crowd      crowd
	db         *gorm.DB
	buy        func(ctx context.Context, o *ticket) error
	goroutines int
	tickets    int64 // of a call
	sent       statements
	next, sold atomic.Int64
}

// shopReport is what a shop did.
type shopReport struct {
	Ops        int                    `json:"ops"`
	Held       int64                  `json:"held"`
	Sold       int64                  `json:"sold"`  // while it was measured
	Total      int64                  `json:"total"` // before it, too
	Trips      int64                  `json:"trips"`
	Statements int                    `json:"statements"`
	CPU        float64                `json:"cpu"` // in s
	Waits      *hdrhistogram.Snapshot `json:"waits"`
}

// openShop opens the shop of one of so many processes, and sells for a while. The processes of a
// crowd share its callers and its connections evenly, whatever the way is.
func openShop(ctx context.Context, b *bench, d database, c crowd, way string, process int, warm time.Duration) (*shop, error) {
	const connections = 16
	s := &shop{crowd: c, goroutines: c.goroutines / c.processes, tickets: ways[way].tickets}
	if s.tickets > 1 {
		s.goroutines = 1
	} else if b.short {
		s.goroutines = min(s.goroutines, 16)
	}
	s.next.Store(int64(process) << 40) // its buyers are its own
	var err error
	if s.db, err = openGORM(b, d, connections/c.processes, &s.sent); err != nil {
		return nil, err
	}
	if s.buy, err = ways[way].open(s.db); err == nil {
		_, err = load(ctx, warm, s.goroutines, s.once)
	}
	if err != nil {
		closeGORM(s.db)
		return nil, err
	}
	return s, nil
}

// once buys once.
func (s *shop) once(ctx context.Context, _ int) (time.Duration, error) {
	c, n := s.crowd, s.next.Add(1)
	o := &ticket{SKU: stockSKU + n%c.rows, Buyer: n}
	if c.repeats > 0 && rand.Float64() < c.repeats {
		o.Buyer = max(1, n-rand.Int64N(1000))
	}
	bad := c.refused > 0 && rand.Float64() < c.refused
	if bad {
		o.N = 5000
	}
	began := time.Now()
	err := s.buy(ctx, o)
	wait := time.Since(began)
	switch {
	case err == nil:
		s.sold.Add(s.tickets)
	case ctx.Err() != nil:
		return wait, err
	case c.soldOut && (errors.Is(err, errSoldOut) || errors.Is(err, declared.ErrInsufficient)), bad, c.repeats > 0 && isRepeat(err):
	default:
		return 0, fmt.Errorf("a call ended with: %w", err)
	}
	return wait, nil
}

// measure sells for so long.
func (s *shop) measure(ctx context.Context, t time.Duration) (shopReport, error) {
	trips, cpu, sold := s.sent.n.Load(), processCPU(), s.sold.Load()
	y, err := load(ctx, t, s.goroutines, s.once)
	return shopReport{y.ops * int(s.tickets), y.held * s.tickets, s.sold.Load() - sold, s.sold.Load(), s.sent.n.Load() - trips, s.sent.different(), processCPU() - cpu, y.waits.Export()}, err
}

// shopChild is one process of several. It opens a shop, and measures once its standard input is
// closed.
func shopChild(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet(shopCommand, flag.ContinueOnError)
	kind, of, way := flags.String("kind", "", ""), flags.String("crowd", "", ""), flags.String("way", "", "")
	process, t, short := flags.Int("process", 0, ""), flags.Duration("time", 0, ""), flags.Bool("short", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, c := range crowds {
		if c.name != *of {
			continue
		}
		s, err := openShop(ctx, &bench{short: *short}, database{kind: server.Kind(*kind)}, c, *way, *process, *t/5)
		if err != nil {
			return err
		}
		defer closeGORM(s.db)
		fmt.Fprintln(stdout, "ready")
		if _, err := io.Copy(io.Discard, stdin); err != nil {
			return err
		}
		r, err := s.measure(ctx, *t)
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(r)
	}
	return fmt.Errorf("there is no crowd %q", *of)
}

// shops sells in the processes of a crowd, and returns what they did together. cpu is the CPU time
// in s, that of the database included.
func (c crowd) shops(ctx context.Context, b *bench, d database, way string, t time.Duration) (all []shopReport, cpu float64, err error) {
	if c.processes == 1 {
		s, err := openShop(ctx, b, d, c, way, 0, t/5)
		if err != nil {
			return nil, 0, err
		}
		defer closeGORM(s.db)
		before := b.allCPU(d)
		r, err := s.measure(ctx, t)
		return []shopReport{r}, b.allCPU(d) - before, err
	}
	binary, err := os.Executable()
	if err != nil {
		return nil, 0, err
	}
	dsn, err := b.database(d)
	if err != nil {
		return nil, 0, err
	}
	var before float64
	all, err = children[shopReport](ctx, c.processes, func(process int) *exec.Cmd {
		cmd := exec.Command(binary, shopCommand, "-kind", string(d.kind), "-crowd", c.name, "-way", way,
			"-process", strconv.Itoa(process), "-time", t.String(), "-short="+strconv.FormatBool(b.short))
		cmd.Env = append(os.Environ(), databases[d.kind].env+"="+dsn)
		return cmd
	}, func() { before = b.allCPU(d) })
	cpu = b.allCPU(d) - before
	for _, r := range all {
		cpu += r.CPU
	}
	return all, cpu, err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"gorm.io/gorm"
)

// result is what -json prints. The first part is what the clients saw, the second what the database
// says.
type result struct {
	Guarded   bool    `json:"guarded"`
	Unguarded bool    `json:"unguarded"`
	Buyers    int     `json:"buyers"`
	Stock     int     `json:"stock"`
	Processes int     `json:"processes"`
	Requests  int64   `json:"requests"`
	Created   int64   `json:"created"`
	Replayed  int64   `json:"replayed"`
	Refused   int64   `json:"refused"`
	SoldOut   int64   `json:"sold_out"`
	Errors    int64   `json:"errors"`
	LastError string  `json:"last_error,omitempty"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
	// Rate is how many orders were placed per second, as long as requests were under way.
	Rate float64 `json:"rate"`
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`

	Sold     int64 `json:"sold"`
	Left     int   `json:"left"`
	Oversold int64 `json:"oversold"`
	Doubled  int64 `json:"doubled"`
	OK       bool  `json:"ok"`
}

// sale runs one: servers up, crowd in, books checked.
func sale(ctx context.Context, o options, stderr io.Writer) (result, error) {
	stopEmbedded, err := embedServers(&o)
	defer stopEmbedded()
	if err != nil {
		return result{}, err
	}
	db, err := openDB(ctx, o.db)
	if err != nil {
		return result{}, err
	}
	defer closeDB(db)
	if err := prepare(db, o.stock); err != nil {
		return result{}, err
	}
	addrs, stop, err := startAll(ctx, o)
	if err != nil {
		return result{}, err
	}
	defer stop()

	l := newLoad(o, addrs)
	done := make(chan struct{})
	quietly := make(chan struct{})
	go func() {
		defer close(quietly)
		if !o.json {
			l.progress(stderr, done)
		}
	}()
	began := time.Now()
	l.shop(ctx)
	took := time.Since(began)
	close(done)
	<-quietly
	if ctx.Err() != nil {
		return result{}, errors.New("interrupted")
	}
	r := l.result(took)
	return r, r.check(db)
}

// startAll starts the service: in this process, or in several.
func startAll(ctx context.Context, o options) (addrs []string, stop func(), err error) {
	if o.procs > 1 {
		return startChildren(ctx, o)
	}
	addr, stop, err := start(ctx, o)
	return []string{addr}, stop, err
}

// check reads the books.
func (r *result) check(db *gorm.DB) error {
	var stock Stock
	// In a transaction, so that all is of one moment: orders may still be placed.
	err := db.Transaction(func(tx *gorm.DB) error {
		return errors.Join(
			tx.Model(&Order{}).Count(&r.Sold).Error,
			tx.Raw("SELECT COUNT(*) FROM (SELECT buyer FROM seckill_orders GROUP BY buyer HAVING COUNT(*) > 1) AS twice").Scan(&r.Doubled).Error,
			tx.First(&stock, "sku = ?", sku).Error,
		)
	})
	if err != nil {
		return fmt.Errorf("cannot read the books: %w", err)
	}
	r.Left, r.Oversold = stock.Left, max(0, r.Sold-int64(r.Stock))
	// A buyer who got an error may have wanted the last unit. Without errors all that could be sold
	// has to be.
	everythingSold := r.Errors > 0 || r.Sold == int64(min(r.Stock, r.Buyers))
	r.OK = r.Oversold == 0 && r.Doubled == 0 && everythingSold && r.Sold+int64(r.Left) == int64(r.Stock)
	return nil
}

func (r *result) print(w io.Writer) {
	lines := "a declared sale"
	switch {
	case r.Guarded:
		lines = "under a guard"
	case r.Unguarded:
		lines = "without the kit"
	}
	fmt.Fprintf(w, "%d buyers, %d units, %d service process(es), %s\n\n", r.Buyers, r.Stock, r.Processes, lines)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, value any, what string) { fmt.Fprintf(t, "%s\t%v\t  %s\n", name, value, what) }
	row("requests", r.Requests, fmt.Sprintf("in %.2f s, %.0f per second", r.Seconds, r.PerSecond))
	row("created", r.Created, fmt.Sprintf("orders answered with 201, %.0f per second until the last one", r.Rate))
	row("replayed", r.Replayed, "retries that got the first answer again")
	row("refused", r.Refused, "duplicates while the first was under way")
	row("sold out", r.SoldOut, "buyers who came too late")
	row("errors", r.Errors, r.LastError)
	row("p50", fmt.Sprintf("%.1f ms", r.P50), "")
	row("p99", fmt.Sprintf("%.1f ms", r.P99), "")
	_ = t.Flush()
	fmt.Fprintf(w, "\nThe database says: %d sold of %d, %d left in stock, %d oversold, %d buyers with two orders or more.\n", r.Sold, r.Stock, r.Left, r.Oversold, r.Doubled)
	if r.OK {
		fmt.Fprintln(w, "OK: nothing oversold, nobody charged twice.")
	} else {
		fmt.Fprintln(w, "BROKEN: the books do not add up.")
	}
}

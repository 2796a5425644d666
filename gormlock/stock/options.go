package stock

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// The defaults of a [Sale], and the most that [Batch] takes.
const (
	defaultBatch    = 256
	defaultWaiting  = 10_000
	defaultWithin   = 5 * time.Second
	defaultRemember = 100 * time.Millisecond
	mostBatch       = 4096
)

// Option configures a [Sale]. Nil is ignored, and the later of two wins.
type Option func(*options)

type options struct {
	where   []any // for gorm.DB's Where; empty: none
	unique  []string
	first   bool
	batch   int
	waiting int
	within  time.Duration
	memory  time.Duration
	meters  metric.MeterProvider
	tracers trace.TracerProvider
}

func (o *options) check() error {
	switch {
	case o.batch < 1 || o.batch > mostBatch:
		return fmt.Errorf("Batch(%d): the number must be from 1 to %d", o.batch, mostBatch)
	case o.waiting < 1:
		return fmt.Errorf("Waiting(%d): the number must be at least 1", o.waiting)
	case o.within <= 0:
		return fmt.Errorf("Within(%v): the time must be positive", o.within)
	case o.memory < 0:
		return fmt.Errorf("Remember(%v): the time must not be negative", o.memory)
	case o.unique != nil && len(o.unique) == 0:
		return errors.New("Unique needs a column")
	case o.first && o.unique == nil:
		return errors.New("First needs Unique")
	}
	return nil
}

// If sells only while the row matches a condition, as gorm.DB's Where takes it. If the row is there
// and does not match, the error is [ErrClosed].
func If(query any, args ...any) Option {
	return func(o *options) { o.where = append([]any{query}, args...) }
}

// Unique names the columns of a unique index of the orders, in the order of the index. A call that
// repeats the values of a stored order gets [ErrDuplicate], and many such calls cost little: the
// sale looks them up before it writes. A field is fine instead of its column. The columns should be
// set when Sell is called, not by a hook.
func Unique(columns ...string) Option {
	return func(o *options) { o.unique = append([]string{}, columns...) }
}

// First reads the stored order into that of a call that gets [ErrDuplicate]. It needs [Unique].
func First() Option { return func(o *options) { o.first = true } }

// Batch sets how many calls share a transaction at most: 1 to 4,096, 256 by default. It is rounded
// down to a power of two.
func Batch(n int) Option { return func(o *options) { o.batch = n } }

// Waiting sets how many calls may wait for one row. A further one gets [ErrBusy] at once. The
// default is 10,000.
func Waiting(n int) Option { return func(o *options) { o.waiting = n } }

// Within bounds the transactions of one batch. The default is 5 s. It does not count the time in
// the line, which the context of a call bounds. MySQL's driver waits longer for the answer to COMMIT:
// give it a readTimeout.
func Within(d time.Duration) Option { return func(o *options) { o.within = d } }

// Remember sets for how long this process remembers that too little is left. Calls that want more
// get [InsufficientError] without the database then, so callers see a restock that much later. The
// default is 100 ms; 0 asks the database every time.
func Remember(d time.Duration) Option { return func(o *options) { o.memory = d } }

// Telemetry sets where a Sale reports. Nil keeps the default: that of package otel.
func Telemetry(meters metric.MeterProvider, tracers trace.TracerProvider) Option {
	return func(o *options) {
		if meters != nil {
			o.meters = meters
		}
		if tracers != nil {
			o.tracers = tracers
		}
	}
}

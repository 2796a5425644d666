package gormlock

import (
	"database/sql"
	"fmt"
	"math"
	"time"
)

// Option configures the plugin of [New]. A nil Option is ignored.
//
// Every [GuardOption] is an Option: given to New it is the default of all guards.
type Option interface{ applyPlugin(*plugin) }

// TransactionOption configures one [Transaction] or one [Once]. A nil one is ignored, the later of
// two wins. A wrong value is an error, even if a later option has a right one.
//
// Every [GuardOption] is a TransactionOption.
type TransactionOption interface{ applyTransaction(*guard) }

// GuardOption configures one [Guard], [Transaction] or [Once], or all guards of a database, as an
// option of [New]. A nil one is ignored, the later of two wins. A wrong value is an error, even if
// a later option has a right one.
type GuardOption interface {
	Option
	TransactionOption
	applyGuard(*guard)
}

type pluginOption func(*plugin)

func (o pluginOption) applyPlugin(p *plugin) { o(p) }

type transactionOption func(*guard)

func (o transactionOption) applyTransaction(g *guard) { o(g) }

type guardOption func(*guard)

func (o guardOption) applyPlugin(p *plugin)     { o(&p.defaults) }
func (o guardOption) applyTransaction(g *guard) { o(g) }
func (o guardOption) applyGuard(g *guard)       { o(g) }

// guardWith returns the guard of a Transaction or a Once with these options.
func guardWith(opts []TransactionOption) (g guard) {
	for _, o := range opts {
		if o != nil {
			o.applyTransaction(&g)
		}
	}
	return g
}

// WithWait sets how long a guard waits for its keys at most. A guard never waits longer than its
// context lives. The default is 5 s, or the WithWait of [New]. It must be positive. If several
// guards come together, the longest of their waits counts.
func WithWait(d time.Duration) GuardOption {
	return guardOption(func(g *guard) {
		g.wait = d
		if d <= 0 {
			g.err = fmt.Errorf("WithWait(%v): the wait must be positive", d)
		}
	})
}

// WithKeys adds keys to that of a [Transaction] or a [Once]. All keys are taken together in one
// order everywhere, all or none. So two transactions that name the same keys in different orders do
// not deadlock. Several WithKeys add up.
func WithKeys(more ...string) TransactionOption {
	return transactionOption(func(g *guard) { g.more = append(g.more, more...) })
}

// WithTxOptions sets the isolation level of the transaction, or makes it read-only. Nil is the
// database's default.
//
// In a transaction that is open already, Transaction cannot change them. Options that differ from
// those of the open transaction are an error.
func WithTxOptions(opts *sql.TxOptions) TransactionOption {
	return transactionOption(func(g *guard) { g.tx = opts })
}

// WithRetry runs the function of a [Transaction] again, at most n more times, if the database
// rolled it back because of other transactions. The reason is a deadlock, a serialization failure
// or a busy SQLite. It does the same after optimistic.ErrStale. [Once] runs its function again up to nine
// times, even without WithRetry. WithRetry pauses for some milliseconds between two tries, and
// stops when the context ends; the error is that of the last try. n must be at least 1.
//
// Each try is a new transaction, and waits for the locks anew. Effects outside of tx happen once
// for each try. In each try the function must read what it writes, because a rollback leaves the
// new values in a model.
//
// Only a transaction that is known to be rolled back runs again. In a transaction that is open
// already WithRetry does nothing: the error goes up to the outermost Transaction.
func WithRetry(n int) TransactionOption {
	return transactionOption(func(g *guard) {
		g.retries = min(n, math.MaxInt-1) // the first run counts, too
		if n < 1 {
			g.err = fmt.Errorf("WithRetry(%d): the number must be at least 1; omit it to run once", n)
		}
	})
}

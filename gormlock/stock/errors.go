package stock

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"

	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqlerr"
)

// The errors of this package. Match them with [errors.Is]. After each of them but ErrCommitUnknown
// nothing was stored.
var (
	// ErrInsufficient reports that less is left than the call should take. See [InsufficientError].
	ErrInsufficient = sqlerr.ErrInsufficient
	// ErrDuplicate reports that an order with the same values in the columns of [Unique] is stored.
	ErrDuplicate = errors.New("an order with these values is stored already")
	// ErrClosed reports that the row is there and does not match the condition of [If].
	ErrClosed = errors.New("the sale is closed")
	// ErrBusy reports that as many calls wait for the row as [Waiting] allows.
	ErrBusy = errors.New("too many calls wait for this row")
	// ErrCommitUnknown reports that COMMIT was sent and that its outcome is unknown: the order is
	// stored and paid for, or neither. It is the ErrCommitUnknown of package gormlock. Look for the
	// order before you sell again.
	ErrCommitUnknown = sqlerr.ErrCommitUnknown
	// ErrDialect reports a database that is not MySQL, MariaDB, PostgreSQL or SQLite.
	ErrDialect = gormkeys.ErrDialect
)

// InsufficientError says what [Sale.Sell], [Decrement] or [DecrementAll] could not take. It matches
// [ErrInsufficient].
type InsufficientError struct {
	// Table is the table, or its alias.
	Table string
	// Row is the condition that names the row, with its values.
	Row string
	// Column is the column that should be taken from.
	Column string
	// N is the quantity that should be taken.
	N int64
	// Left is how much there was. It is -1 if that is not known: Decrement does not read it, and
	// there may be no such row.
	Left int64
}

// Error names the table, the row, the column and the quantities.
func (e *InsufficientError) Error() string {
	left := "less, or no such row"
	if e.Left >= 0 {
		left = strconv.FormatInt(e.Left, 10)
	}
	return fmt.Sprintf("stock: not enough left: %d wanted from column %q of table %q where %s: there is %s",
		e.N, e.Column, e.Table, e.Row, left)
}

// Is makes the error match [ErrInsufficient].
func (e *InsufficientError) Is(target error) bool { return target == ErrInsufficient }

// panicError is a panic of a hook, on its way from the goroutine that sold a batch to the caller
// whose order it was.
type panicError struct {
	value  any
	stack  []byte
	goexit bool
}

// Error has the stack of the hook.
func (e *panicError) Error() string {
	if e.goexit {
		return "stock: a hook of the order called runtime.Goexit"
	}
	return fmt.Sprintf("%v\n\n%s", e.value, e.stack)
}

// Unwrap returns the value of the panic if it is an error.
func (e *panicError) Unwrap() error {
	err, _ := e.value.(error)
	return err
}

// again goes on with the panic or the Goexit of a hook in the caller's goroutine.
func (e *panicError) again() {
	if e.goexit {
		runtime.Goexit()
	}
	panic(e)
}

// Package sqlite3 has an error of the shape of mattn/go-sqlite3's: its codes are fields.
package sqlite3

import "fmt"

type (
	// ErrNo is a primary result code.
	ErrNo int
	// ErrNoExtended says more.
	ErrNoExtended int
)

// Error is an error of SQLite.
type Error struct {
	Code         ErrNo
	ExtendedCode ErrNoExtended
}

// Error implements error.
func (e Error) Error() string { return fmt.Sprintf("sqlite3: code %d", e.Code) }

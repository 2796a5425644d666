// Package sqlite3 has an error of the shape of mattn/go-sqlite3's: its code is a field.
package sqlite3

import "fmt"

// ErrNo is a result code.
type ErrNo int

// Error is an error of SQLite.
type Error struct{ Code ErrNo }

// Error implements error.
func (e Error) Error() string { return fmt.Sprintf("sqlite3: code %d", e.Code) }

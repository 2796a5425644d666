package gormlock

import (
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"
)

var errEndsTransaction = errors.New("MySQL and MariaDB commit before this statement, " +
	"so the rest of the transaction would not be guarded: run it outside, under core.Locker's Do, " +
	"or as a single statement with a guard of its own")

// staysOpen returns an error for a statement with which MySQL or MariaDB would end a guarded
// transaction in its middle. A guarded single statement may be one: nothing follows it.
func (t *transaction) staysOpen(s *gorm.Statement) error {
	if t.pool.dialect.name != "mysql" || t.turn != nil || s.SQL.Len() == 0 || !endsTransaction(s.SQL.String()) {
		return nil
	}
	if _, single := s.Settings.Load(singleKey{s}); single || !t.guarded() {
		return nil
	}
	word, _ := firstWord(s.SQL.String())
	return guardError(t.keys, fmt.Errorf("%s: %w", word, errEndsTransaction))
}

// endsTransaction reports whether MySQL commits before a statement, as its first words tell.
func endsTransaction(query string) bool {
	word, rest := firstWord(query)
	switch word {
	case "CREATE", "DROP":
		next, rest := firstWord(rest)
		if next == "OR" { // REPLACE
			_, rest = firstWord(rest)
			next, _ = firstWord(rest)
		}
		return next != "TEMPORARY"
	case "ANALYZE", "BEGIN", "ROLLBACK": // MariaDB has ANALYZE SELECT, and BEGIN NOT ATOMIC
		next, rest := firstWord(rest)
		if next == "WORK" {
			next, _ = firstWord(rest)
		}
		return !slices.Contains([]string{"TO", "NOT", "SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "REPLACE", "FORMAT"}, next)
	case "ALTER", "RENAME", "TRUNCATE", "GRANT", "REVOKE", "LOCK", "UNLOCK", "START", "COMMIT", "OPTIMIZE", "REPAIR",
		"CHECK", "FLUSH", "RESET", "CACHE", "INSTALL", "UNINSTALL":
		return true
	}
	return false
}

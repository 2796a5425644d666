package gormlock

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"gorm.io/gorm"
)

var errEndsTransaction = errors.New("MySQL and MariaDB commit before this statement and go on with it " +
	"after its context ended, so no guard covers it: run it without one, under core.Locker's Do")

var errEndsItself = errors.New("the rest of the transaction would not be guarded: return an error to roll back, " +
	"and let the block, Commit or Rollback end it")

// staysOpen returns an error for a statement that would end a guarded transaction, as many do on
// MySQL and MariaDB.
func (t *transaction) staysOpen(s *gorm.Statement) error {
	if s.SQL.Len() == 0 || !t.guarded() {
		return nil
	}
	why := errEndsTransaction
	query := unwrapped(s.SQL.String())
	switch {
	case endsByName(query):
		why = errEndsItself
	case t.pool.dialect.Name != "mysql" || !endsTransaction(query):
		return nil
	}
	word, _ := firstWord(query)
	return guardError(t.keys, fmt.Errorf("%s: %w", word, why))
}

// unwrapped returns a statement without the beginning of a comment that MySQL executes, such as
// /*!50003 in /*!50003 DROP TABLE items */.
func unwrapped(query string) string {
	if word, rest := firstWord(query); word == "" {
		for _, begin := range []string{"/*!", "/*M!"} {
			if inner, ok := strings.CutPrefix(rest, begin); ok {
				return strings.TrimLeft(inner, "0123456789")
			}
		}
	}
	return query
}

// endsByName reports whether a statement is a COMMIT or a ROLLBACK of the whole transaction, or
// PostgreSQL's PREPARE TRANSACTION. A prepared statement may have the name TRANSACTION.
func endsByName(query string) bool {
	word, rest := firstWord(query)
	next, rest := firstWord(rest)
	if word == "PREPARE" {
		after, _ := firstWord(rest)
		return next == "TRANSACTION" && after != "AS" && after != "FROM"
	}
	if next == "WORK" || next == "TRANSACTION" {
		next, _ = firstWord(rest)
	}
	return slices.Contains([]string{"COMMIT", "END", "ABORT"}, word) || word == "ROLLBACK" && next != "TO"
}

var setFor = regexp.MustCompile(`(?i)\bFOR\b`)

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
	case "ANALYZE", "BEGIN": // MariaDB has ANALYZE SELECT, and BEGIN NOT ATOMIC
		next, _ := firstWord(rest)
		return !slices.Contains([]string{"NOT", "SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "REPLACE", "FORMAT"}, next)
	case "SET":
		next, rest := firstWord(rest)
		if next == "STATEMENT" { // of MariaDB: SET STATEMENT a = b FOR …
			inner := setFor.FindStringIndex(rest)
			return inner != nil && (endsTransaction(rest[inner[1]:]) || endsByName(rest[inner[1]:]))
		}
		return next == "PASSWORD" || next == "DEFAULT" // ROLE
	case "LOAD": // INDEX, but not DATA
		next, _ := firstWord(rest)
		return next == "INDEX"
	case "ALTER", "RENAME", "TRUNCATE", "GRANT", "REVOKE", "LOCK", "UNLOCK", "START", "STOP", "CHANGE",
		"OPTIMIZE", "REPAIR", "CHECK", "FLUSH", "RESET", "CACHE", "INSTALL", "UNINSTALL", "IMPORT",
		"CLONE", "BACKUP":
		return true
	}
	return false
}

// firstWord returns the first word of a statement in capitals, and what follows. There is none in a
// comment that MySQL executes.
func firstWord(query string) (word, rest string) {
	query = strings.TrimLeft(query, " \t\r\n\f\v;(")
	for _, c := range []struct{ begin, end string }{{"/*", "*/"}, {"--", "\n"}, {"#", "\n"}} {
		if _, rest, ok := strings.Cut(query, c.end); ok && strings.HasPrefix(query, c.begin) &&
			!strings.HasPrefix(query, "/*!") && !strings.HasPrefix(query, "/*M!") {
			return firstWord(rest)
		}
	}
	end := strings.IndexFunc(query, func(r rune) bool { return !unicode.IsLetter(r) })
	if end < 0 {
		end = len(query)
	}
	return strings.ToUpper(query[:end]), query[end:]
}

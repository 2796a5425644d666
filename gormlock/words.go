package gormlock

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// firstWord returns the first word of a statement in capitals, and what follows. A comment that
// MySQL executes has none.
func firstWord(query string) (word, rest string) {
	query = strings.TrimLeft(query, " \t\r\n\f\v;(")
	for _, c := range []struct{ begin, end string }{{"/*", "*/"}, {"--", "\n"}, {"#", "\n"}} {
		if !strings.HasPrefix(query, c.begin) || strings.HasPrefix(query, "/*!") || strings.HasPrefix(query, "/*M!") {
			continue
		}
		if _, rest, ok := strings.Cut(query, c.end); ok {
			return firstWord(rest)
		}
	}
	end := strings.IndexFunc(query, func(r rune) bool { return !unicode.IsLetter(r) })
	if end < 0 {
		end = len(query)
	}
	return strings.ToUpper(query[:end]), query[end:]
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

// savepointIn returns the name in a SAVEPOINT, a RELEASE or a ROLLBACK TO, in lower case and
// without quotes. A ROLLBACK of the whole transaction has none.
func savepointIn(query string) (verb, name string) {
	// Every statement comes here, and most begin with another letter.
	if query == "" || unicode.IsLetter(rune(query[0])) && !strings.ContainsRune("SsRr", rune(query[0])) {
		return "", ""
	}
	verb, rest := firstWord(query)
	switch verb {
	case "SAVEPOINT":
	case "RELEASE":
		rest = afterWords(rest, "SAVEPOINT")
	case "ROLLBACK":
		rest = afterWords(rest, "WORK", "TRANSACTION")
		if next, _ := firstWord(rest); next != "TO" {
			return verb, ""
		}
		rest = afterWords(afterWords(rest, "TO"), "SAVEPOINT")
	default:
		return "", ""
	}
	return verb, strings.ToLower(nameIn(rest))
}

// afterWords returns text without its first word, if that is one of these.
func afterWords(text string, words ...string) string {
	word, rest := firstWord(text)
	if slices.Contains(words, word) && strings.IndexAny(rest, nameChars) != 0 {
		return rest
	}
	return text
}

// nameChars are those that may follow letters in a name.
const nameChars = "_$0123456789"

// nameIn returns the name that text begins with, after comments, and without quotes.
func nameIn(text string) string {
	_, rest := firstWord(text)
	before := strings.TrimRightFunc(text[:len(text)-len(rest)], unicode.IsLetter)
	text = text[len(before):]
	if text == "" {
		return ""
	}
	if i := strings.IndexByte("\"`'[", text[0]); i >= 0 {
		name, _, _ := strings.Cut(text[1:], "\"`']"[i:i+1])
		return name
	}
	if end := strings.IndexAny(text, " \t\r\n\f\v;-/#"); end >= 0 {
		return text[:end]
	}
	return text
}

// Package keytext reads and writes a client's key in a header or in metadata.
package keytext

import (
	"errors"
	"fmt"
	"strings"
)

const maxClientKey = 255

// ErrNoKey means that the request has no key.
var ErrNoKey = errors.New("the key is missing")

var (
	errEmpty     = errors.New("it is empty")
	errRepeated  = errors.New("it was sent more than once, or is a list")
	errLong      = errors.New("it has more than 255 bytes")
	errCharacter = errors.New("it has a character that is not allowed")
	errQuote     = errors.New("its quotes are not closed, or something follows them")
)

// Parse reads a client's key from the values of its header or metadata. It is a Structured Field
// String (RFC 8941, 3.3.3), or the same without quotes, of 1 to 255 printable ASCII characters.
// Parameters of the Structured Field are ignored. Without values the error is [ErrNoKey]. The text
// of any other error is half a sentence that may be shown to the client.
func Parse(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", ErrNoKey
	case 1:
	default:
		return "", errRepeated
	}
	text := strings.Trim(values[0], " \t")
	key, err := text, error(nil)
	switch {
	case strings.HasPrefix(text, `"`):
		key, err = unquote(text[1:])
	case strings.ContainsAny(text, `,`):
		err = errRepeated
	case strings.ContainsAny(text, `"`):
		err = errQuote
	}
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", errEmpty
	case len(key) > maxClientKey:
		return "", errLong
	case strings.IndexFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) >= 0:
		return "", errCharacter
	}
	return key, nil
}

// Format is the inverse of [Parse]. It returns an error unless the key has 1 to 255 printable ASCII
// characters.
func Format(key string) (string, error) {
	value := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
	if read, err := Parse([]string{value}); err != nil || read != key {
		return "", fmt.Errorf("idempotency: the key %q must have 1 to 255 printable ASCII characters", key)
	}
	return value, nil
}

// unquote reads the rest of a string after its opening quote, and ignores parameters after it.
func unquote(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			if rest := strings.TrimLeft(text[i+1:], " "); rest != "" && rest[0] != ';' {
				return "", errQuote
			}
			return b.String(), nil
		case '\\':
			i++
			if i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", errQuote
			}
		}
		b.WriteByte(text[i])
	}
	return "", errQuote
}

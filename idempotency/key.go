package idempotency

import (
	"errors"
	"fmt"
	"strings"

	"github.com/onelane/onelane/core"
)

const maxClientKey = 255

// ErrNoKey says that a request has no key. See [ParseKey].
var ErrNoKey = errors.New("the key is missing")

var (
	errEmpty     = errors.New("it is empty")
	errRepeated  = errors.New("the header was sent more than once, or is a list")
	errLong      = errors.New("it has more than 255 bytes")
	errCharacter = errors.New("it has a character that is not allowed")
	errQuote     = errors.New("its quotes are not closed, or something follows them")
)

// ParseKey reads a client's key from the values of its header, or metadata: a Structured Field String (RFC 8941,
// 3.3.3), or the same without quotes, of 1 to 255 printable characters of ASCII. No values at all are [ErrNoKey]; the
// text of any other error is half a sentence that may be shown to the client.
func ParseKey(values []string) (string, error) {
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

// FormatKey is the inverse of [ParseKey]: the value of a header, or metadata, with this key in quotes. It is an error if
// the key has not 1 to 255 printable characters of ASCII.
func FormatKey(key string) (string, error) {
	value := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
	if read, err := ParseKey([]string{value}); err != nil || read != key {
		return "", fmt.Errorf("idempotency: the key %q is not of 1 to 255 printable characters of ASCII", key)
	}
	return value, nil
}

// SpaceKey is the key for [Claims.Begin] of a client's key in a space that several adapters share, for a principal: the
// same whatever the request comes by.
func SpaceKey(space, principal, key string) string { return core.Join(principal, "space", space, key) }

// unquote reads the rest of a string after its opening quote.
func unquote(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			if i+1 < len(text) {
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

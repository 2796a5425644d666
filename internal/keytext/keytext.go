// Package keytext reads and writes a client's key in a header or in metadata.
package keytext

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const maxClientKey = 255

// ErrNoKey means that the request has no key.
var ErrNoKey = errors.New("the key is missing")

// ErrNobody means that the caller is anonymous, and the key is made of its name.
var ErrNobody = errors.New("the caller is not known")

// What is wrong with a key, or with a value that is part of one: half a sentence for the client.
var (
	// ErrFunc means that a function that makes keys returned an error.
	ErrFunc      = errors.New("it could not be made")
	ErrLong      = errors.New("it has more than 255 bytes")
	ErrCharacter = errors.New("it has a character that is not allowed")
	errEmpty     = errors.New("it is empty")
	errRepeated  = errors.New("it was sent more than once, or is a list")
	errQuote     = errors.New("its quotes are not closed, or something follows them")
)

// LockRefused is for a client whose values make a key that the Locker refuses.
const LockRefused = "The values that the lock's key is made of are too long together, or have a character that is not allowed."

// What to send: the end of a sentence for the client.
const (
	KeyForm   = `one key of 1 to 255 printable characters, as "key" or key.`
	ValueForm = "one value of 1 to 255 bytes, without control characters."
)

// Missing returns what a client that sent no key should do. The place is where it sends the key,
// and the form is what it sends there. The place is empty if a function makes the key.
func Missing(place, form string) (correction string) {
	if place == "" {
		return "Send the values that the key is made of."
	}
	return "Send " + place + ": " + form
}

// Refused returns why a client's key is refused, and what the client should do. Place and form are
// as in [Missing].
func Refused(place, form string, err error) (detail, correction string) {
	if place == "" {
		return "The key that the server makes of the request is refused: " + err.Error() + ".",
			"Change the values that the key is made of."
	}
	return "The key of " + place + " is refused: " + err.Error() + ".", Missing(place, form)
}

// IsText reports whether s is UTF-8 without control characters.
func IsText(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}

// Value checks a value that is part of a key: 1 to 255 bytes, without control characters.
func Value(s string) (string, error) {
	switch {
	case s == "":
		return "", errEmpty
	case len(s) > maxClientKey:
		return "", ErrLong
	case !IsText(s):
		return "", ErrCharacter
	}
	return s, nil
}

type clientKey struct{}

// WithKey returns a context whose calls have this key.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, clientKey{}, key)
}

// FromContext returns the key of [WithKey].
func FromContext(ctx context.Context) (string, bool) {
	key, ok := ctx.Value(clientKey{}).(string)
	return key, ok
}

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
		return "", ErrLong
	case strings.IndexFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) >= 0:
		return "", ErrCharacter
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
			return b.String(), checkParameters(text[i+1:])
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

// checkParameters returns an error if more than parameters follows a key: another item of a list,
// or a string that is not closed.
func checkParameters(text string) error {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '"':
			quoted = !quoted
		case quoted && text[i] == '\\':
			i++
		case !quoted && text[i] == ',':
			return errRepeated
		}
	}
	if quoted {
		return errQuote
	}
	return nil
}

package core

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxKey    = 512
	maxPrefix = 128
)

// Join makes one key of several parts, so that different parts never make the same key. A ":"
// separates the parts, and is escaped inside them: Join("a:b", "c") and Join("a", "b:c") differ.
// Plain parts stay as they are: Join("stock", "42") is "stock:42". Use Join if a part comes from
// outside.
func Join(parts ...string) string {
	size := len(parts)
	for _, p := range parts {
		size += len(p)
	}
	var b strings.Builder
	b.Grow(size)
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(':')
		}
		if strings.ContainsAny(p, "%:") {
			p = joinEscape.Replace(p)
		}
		b.WriteString(p)
	}
	return b.String()
}

var (
	joinEscape  = strings.NewReplacer("%", "%25", ":", "%3A")
	braceEscape = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
)

// validKey keeps the rules for keys: 1 to 512 bytes of UTF-8 without control characters.
func validKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: the key is empty", ErrInvalidKey)
	case len(key) > maxKey:
		return fmt.Errorf("%w %q…: it has %d bytes, at most %d are allowed", ErrInvalidKey, key[:32], len(key), maxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("%w %q: it is not valid UTF-8", ErrInvalidKey, key)
	case strings.IndexFunc(key, unicode.IsControl) >= 0:
		return fmt.Errorf("%w %q: it has a control character", ErrInvalidKey, key)
	}
	return nil
}

func validPrefix(prefix string) error {
	if len(prefix) > maxPrefix || !utf8.ValidString(prefix) || strings.ContainsAny(prefix, "{}") || strings.IndexFunc(prefix, unicode.IsControl) >= 0 {
		return fmt.Errorf("core: WithPrefix(%q): a prefix must have at most %d bytes, and no braces or control characters", prefix, maxPrefix)
	}
	return nil
}

// backendKey is the name under which the backend knows a key. The braces put the key, its fence
// counter and its channel into one slot of a Redis Cluster, whatever the key holds.
func backendKey(prefix, key string) (string, error) {
	if err := validKey(key); err != nil {
		return "", err
	}
	if prefix == "" { // the user's own text, as plain redsync writes it
		if strings.ContainsAny(key, "{}") {
			return "", fmt.Errorf("%w %q: without a prefix it must not have braces, which choose the slot on a cluster", ErrInvalidKey, key)
		}
		return key, nil
	}
	return prefix + "{" + braceEscape.Replace(key) + "}", nil
}

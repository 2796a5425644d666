package ginlock

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gin-gonic/gin"
)

const maxKey = 255

var (
	errNoKey      = errors.New("the key is missing")
	errEmpty      = errors.New("it is empty")
	errRepeated   = errors.New("the header was sent more than once, or is a list")
	errLong       = errors.New("it has more than 255 bytes")
	errCharacter  = errors.New("it has a character that is not allowed")
	errQuote      = errors.New("its quotes are not closed, or something follows them")
	errNoSuchPart = errors.New("the route has no such parameter")
)

// headerKey reads the key from the lines of its header: a Structured Field String (RFC 8941, 3.3.3), or the same
// without quotes.
func headerKey(lines []string) (string, error) {
	switch len(lines) {
	case 0:
		return "", errNoKey
	case 1:
	default:
		return "", errRepeated
	}
	text := strings.Trim(lines[0], " \t")
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
	case len(key) > maxKey:
		return "", errLong
	case strings.IndexFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) >= 0:
		return "", errCharacter
	}
	return key, nil
}

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

// paramKey reads the key from a parameter of the path.
func paramKey(c *gin.Context, name string) (string, error) {
	key, ok := c.Params.Get(name)
	switch {
	case !ok:
		return "", errNoSuchPart
	case key == "":
		return "", errEmpty
	case len(key) > maxKey:
		return "", errLong
	case !utf8.ValidString(key) || strings.IndexFunc(key, unicode.IsControl) >= 0:
		return "", errCharacter
	}
	return key, nil
}

// resource is the path of a route up to and with a parameter, with the values of this request. A slash inside a value
// is escaped, so that no value imitates another path.
func resource(route, name string, params gin.Params) string {
	var b strings.Builder
	for {
		i := strings.IndexAny(route, ":*")
		if i < 0 {
			return b.String() // not reached: the parameter is one of the route's
		}
		b.WriteString(route[:i])
		param, rest, _ := strings.Cut(route[i+1:], "/")
		_, _ = pathEscape.WriteString(&b, params.ByName(param))
		if param == name {
			return b.String()
		}
		b.WriteByte('/')
		route = rest
	}
}

var pathEscape = strings.NewReplacer("%", "%25", "/", "%2F")

// validToken keeps the rule for header names (RFC 9110, 5.6.2).
func validToken(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}) < 0
}

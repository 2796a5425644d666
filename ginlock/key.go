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
	errEmpty      = errors.New("it is empty")
	errLong       = errors.New("it has more than 255 bytes")
	errCharacter  = errors.New("it has a character that is not allowed")
	errNoSuchPart = errors.New("the route has no such parameter")
)

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

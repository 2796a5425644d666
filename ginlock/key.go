package ginlock

import (
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/idempotency"
)

const maxKey = 255

var (
	errTwice      = errors.New("it was sent more than once")
	errQuery      = errors.New("the query cannot be read")
	errFunc       = errors.New("no key could be made")
	errEmpty      = errors.New("it is empty")
	errLong       = errors.New("it is too long")
	errCharacter  = errors.New("it has a character that is not allowed")
	errNoSuchPart = errors.New("the route has no such parameter")
)

const (
	headerForm = `one key of 1 to 255 printable characters, as "key" or key.`
	valueForm  = "one value of 1 to 255 bytes, without control characters."
)

// validValue keeps the rule for values that stand for a key.
func validValue(key string) (string, error) {
	switch {
	case key == "":
		return "", errEmpty
	case len(key) > maxKey:
		return "", errLong
	case !utf8.ValidString(key) || strings.IndexFunc(key, unicode.IsControl) >= 0:
		return "", errCharacter
	}
	return key, nil
}

// paramKey reads the key from a parameter of the path.
func paramKey(c *gin.Context, name string) (string, error) {
	key, ok := c.Params.Get(name)
	if !ok {
		return "", errNoSuchPart
	}
	return validValue(key)
}

// queryKey reads the key from a parameter of the query. It must not come twice: handlers take the first, the last or
// all of them. A query that cannot be read as a whole is refused: what the handler sees of it is a matter of luck.
func queryKey(query, name string) (string, error) {
	all, err := url.ParseQuery(query)
	switch values := all[name]; {
	case err != nil:
		return "", errQuery
	case len(values) == 0:
		return "", idempotency.ErrNoKey
	case len(values) > 1:
		return "", errTwice
	default:
		return validValue(values[0])
	}
}

// cookieKey reads the key from a cookie, as gin's Context.Cookie does.
func cookieKey(r *http.Request, name string) (string, error) {
	cookies := r.CookiesNamed(name)
	switch len(cookies) {
	case 0:
		return "", idempotency.ErrNoKey
	case 1:
	default:
		return "", errTwice
	}
	value, err := url.QueryUnescape(cookies[0].Value)
	if err != nil {
		return "", errCharacter
	}
	return validValue(value)
}

// funcKey asks the application for the key.
func (m *middleware) funcKey(c *gin.Context, fn KeyFunc) (string, error) {
	key, err := fn(c)
	switch {
	case err != nil:
		m.log(c, slog.LevelWarn, "ginlock: By: no key could be made; the request is refused", err)
		return "", errFunc
	case key == "":
		return "", idempotency.ErrNoKey
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
		param, rest, _ := strings.Cut(route[i+1:], "/")
		value, ok := params.Get(param)
		if !ok { // a colon that was escaped in the route, which gin shows without its backslash
			b.WriteString(route[:i+1])
			route = route[i+1:]
			continue
		}
		b.WriteString(route[:i])
		_, _ = pathEscape.WriteString(&b, value)
		if param == name {
			return b.String()
		}
		b.WriteByte('/')
		route = rest
	}
}

var pathEscape = strings.NewReplacer("%", "%25", "/", "%2F")

// keptHeader refuses names that a server never finds among a request's headers, so that no request would have a key.
func keptHeader(name string) error {
	switch http.CanonicalHeaderKey(name) {
	case "Host":
		return errors.New("net/http keeps Host out of the headers: use By with a function that reads c.Request.Host")
	case "Transfer-Encoding", "Trailer":
		return errors.New("net/http takes it out of the headers, since it is about the connection: use another header")
	}
	return nil
}

// validToken keeps the rule for header names (RFC 9110, 5.6.2).
func validToken(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}) < 0
}

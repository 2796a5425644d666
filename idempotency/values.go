package idempotency

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/onelane/onelane/internal/keytext"
)

var (
	errTwice      = errors.New("it was sent more than once")
	errQuery      = errors.New("the query cannot be read")
	errNoSuchPart = errors.New("the route has no such parameter")
)

// paramKey reads the key from a parameter of the path.
func (f *front) paramKey(r *http.Request, name string) (string, error) {
	key, ok := f.router.param(r, name)
	if !ok {
		return "", errNoSuchPart
	}
	return keytext.Value(key)
}

// queryKey reads the key from a parameter of the query. A parameter that comes twice is refused,
// because handlers take the first, the last or all of them. So is a query that cannot be parsed as
// a whole.
func queryKey(query, name string) (string, error) {
	all, err := url.ParseQuery(query)
	switch values := all[name]; {
	case err != nil:
		return "", errQuery
	case len(values) == 0:
		return "", keytext.ErrNoKey
	case len(values) > 1:
		return "", errTwice
	default:
		return keytext.Value(values[0])
	}
}

// cookieKey reads the key from a cookie, which must not come twice.
func cookieKey(r *http.Request, name string) (string, error) {
	cookies := r.CookiesNamed(name)
	switch len(cookies) {
	case 0:
		return "", keytext.ErrNoKey
	case 1:
	default:
		return "", errTwice
	}
	value, err := url.QueryUnescape(cookies[0].Value)
	if err != nil {
		return "", keytext.ErrCharacter
	}
	return keytext.Value(value)
}

// keptHeader refuses names that a server never finds among a request's headers: no request would
// have a key.
func keptHeader(name string) error {
	switch http.CanonicalHeaderKey(name) {
	case "Host":
		return errors.New("net/http keeps Host out of the headers: use By with a function that reads r.Host")
	case "Transfer-Encoding", "Trailer":
		return errors.New("net/http removes it from the headers, because it is about the connection: use another header")
	}
	return nil
}

// validToken reports whether s can be the name of a header (RFC 9110, 5.6.2).
func validToken(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}) < 0
}

package ginlock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/keytemplate"
)

// ByKey returns a middleware that makes the key of a template, for example
// "order:{param.id}:{header.X-User}". A field in braces stands for a value of the request, and other
// text for itself. Values are escaped as by [core.Join], and between two fields there must be a ":",
// so that different values make different keys. With [LockOnly] it is the name of the lock as it is, the same as for Acquire in
// package core and for the guards of gormlock: a template without fields is one lock for all requests. With
// [Principal] beside LockOnly it is another lock for each caller, which excludes nobody else. Without LockOnly the key
// belongs to one principal, method and route, as every key. The fields are:
//
//   - {header.NAME}: a header, as [ByHeader] reads it;
//   - {param.NAME}: a parameter of the route's path;
//   - {query.NAME}: a query parameter, which must not come twice. Read it by Query or ShouldBindQuery: PostForm, FormValue
//     and ShouldBind take what is in the body first, and could find another one;
//   - {cookie.NAME}: a cookie, which must not come twice;
//   - {json.PATH}: a text or a whole number in the JSON body: order.id is 7 in {"order":{"id":7}}. Names are compared as
//     encoding/json does, in upper or lower case, and one that comes twice is refused: the handler could read another
//     value than the one that was locked. The Content-Type must be JSON, and where gin's ShouldBind does not take it for
//     that, there must be no query, which it would read instead; see [MaxRequestBody];
//   - {principal}: who asks, see [Principal].
//
// A request in which one is missing or empty is refused (400), whether or not [Require] is set: a lock that a client
// can leave out is none.
//
// It panics at wiring when the template or a field is not as above, or when options contradict each other. The Locker
// may be set later, by [core.SetDefault]: until then requests are 503.
func ByKey(template string, opts ...Option) gin.HandlerFunc {
	t, err := keytemplate.Parse(template)
	if err != nil {
		panic("ginlock: ByKey: " + err.Error())
	}
	s := source{
		name: "key " + template, constant: len(t.Fields()) == 0,
		lock: func(_ *gin.Context, key string) string { return key },
	}
	fields := make(map[string]field, len(t.Fields()))
	for _, text := range t.Fields() {
		f, err := parseField(text)
		if err != nil {
			panic(fmt.Sprintf("ginlock: ByKey(%q): %v", template, err))
		}
		fields[text] = f
		s.readsBody = s.readsBody || f.json
		s.byCaller = s.byCaller || f.principal
	}
	s.read = func(m *middleware, c *gin.Context) (string, error) {
		var failed error
		key, err := t.Key(func(text string) (string, error) {
			f := fields[text]
			value, err := f.read(m, c)
			if err != nil {
				failed = &fieldError{field: f, err: err}
			}
			return value, failed
		})
		if failed != nil {
			return "", failed // without the template, which is not for clients
		}
		return key, err
	}
	return newMiddleware(s, opts)
}

// field is one field of a template.
type field struct {
	place, form     string
	json, principal bool
	read            func(*middleware, *gin.Context) (string, error) // idempotency.ErrNoKey where it is missing
}

// fieldError says which field of a template is not as it should be.
type fieldError struct {
	field
	err error
}

func (e *fieldError) Error() string { return e.place + ": " + e.err.Error() }
func (e *fieldError) Unwrap() error { return e.err }

var errFields = errors.New("a field is {header.NAME}, {param.NAME}, {query.NAME}, {cookie.NAME}, {json.PATH} or {principal}")

func parseField(text string) (field, error) {
	if text == "principal" {
		return field{place: "the principal", form: "credentials that say who asks.", principal: true, read: principalKey}, nil
	}
	kind, name, _ := strings.Cut(text, ".")
	if name == "" {
		return field{}, fmt.Errorf("{%s}: %w", text, errFields)
	}
	switch kind {
	case "header":
		if !validToken(name) {
			return field{}, fmt.Errorf("{%s}: %q is no header name", text, name)
		}
		if err := keptHeader(name); err != nil {
			return field{}, fmt.Errorf("{%s}: %w", text, err)
		}
		return field{place: "the header " + name, form: headerForm, read: func(_ *middleware, c *gin.Context) (string, error) {
			return idempotency.ParseKey(c.Request.Header.Values(name))
		}}, nil
	case "param":
		return field{place: "the path parameter " + name, form: valueForm, read: func(_ *middleware, c *gin.Context) (string, error) {
			return paramKey(c, name)
		}}, nil
	case "query":
		return field{place: "the query parameter " + name, form: valueForm, read: func(_ *middleware, c *gin.Context) (string, error) {
			return queryKey(c.Request.URL.RawQuery, name)
		}}, nil
	case "cookie":
		if !validToken(name) {
			return field{}, fmt.Errorf("{%s}: %q is no cookie name", text, name)
		}
		return field{place: "the cookie " + name, form: valueForm, read: func(_ *middleware, c *gin.Context) (string, error) {
			return cookieKey(c.Request, name)
		}}, nil
	case "json":
		path := strings.Split(name, ".")
		for _, part := range path {
			if part == "" {
				return field{}, fmt.Errorf("{%s}: the path has an empty part", text)
			}
		}
		return field{place: "the JSON member " + name, form: jsonForm, json: true, read: func(m *middleware, c *gin.Context) (string, error) {
			return m.jsonKey(c, path)
		}}, nil
	}
	return field{}, fmt.Errorf("{%s}: %w", text, errFields)
}

// principalKey is who asks; missing for an anonymous caller.
func principalKey(m *middleware, c *gin.Context) (string, error) {
	who, err := m.who(c)
	switch {
	case err != nil:
		return "", &whoError{err}
	case who == "":
		return "", idempotency.ErrNoKey
	}
	return who, nil
}

// whoError says that the principal is not known, by a mistake of the program.
type whoError struct{ error }

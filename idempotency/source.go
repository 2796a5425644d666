package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/keytemplate"
	"github.com/onelane/onelane/internal/keytext"
)

// reading is a request whose key is read.
type reading struct {
	*front
	r *http.Request
}

type source = keytemplate.Source[reading]

func headerSource(name string) (source, error) {
	if !validToken(name) {
		return source{}, errors.New("pass the name of a header, for example Idempotency-Key")
	}
	name = http.CanonicalHeaderKey(name)
	return source{
		Name: name, Text: name, Place: "the header " + name, Form: keytext.KeyForm,
		Read: func(x reading) (string, error) { return keytext.Parse(x.r.Header.Values(name)) },
	}, keptHeader(name)
}

func funcSource(fn func(r *http.Request) (string, error)) source {
	s := keytemplate.OfFunc(
		func(x reading) (string, error) { return fn(x.r) },
		func(x reading, err error) error {
			x.warn(x.r, "idempotency: By: no key could be made; the request is refused", err)
			return keytext.ErrFunc
		},
	)
	s.Func = claim.Identity(fn)
	return s
}

func templateSource(template string) (source, error) {
	return keytemplate.OfTemplate(template, parseField)
}

var errFields = errors.New("a field is {header.NAME}, {param.NAME}, {query.NAME}, {cookie.NAME}, {json.PATH} or {principal}")

// parseField returns the source of a field of a template.
func parseField(text string) (source, error) {
	if text == "principal" {
		return keytemplate.OfPrincipal(reading.caller), nil
	}
	kind, name, _ := strings.Cut(text, ".")
	if name == "" {
		return source{}, errFields
	}
	value := func(what string, read func(reading) (string, error)) (source, error) {
		return source{Place: what + name, Form: keytext.ValueForm, Read: read}, nil
	}
	switch kind {
	case "header":
		return headerSource(name)
	case "param":
		s, err := value("the path parameter ", func(x reading) (string, error) { return x.paramKey(x.r, name) })
		s.Reads = []string{name}
		return s, err
	case "query":
		return value("the query parameter ", func(x reading) (string, error) { return queryKey(x.r.URL.RawQuery, name) })
	case "cookie":
		if !validToken(name) {
			return source{}, fmt.Errorf("%q is no name of a cookie", name)
		}
		return value("the cookie ", func(x reading) (string, error) { return cookieKey(x.r, name) })
	case "json":
		path := strings.Split(name, ".")
		if slices.Contains(path, "") {
			return source{}, errors.New("the path has an empty part")
		}
		s, err := value("the JSON member ", func(x reading) (string, error) { return x.jsonKey(x.r, path) })
		s.Form = jsonForm
		return s, err
	}
	return source{}, errFields
}

// caller returns the caller's name, or "".
func (x reading) caller() (string, error) {
	who, err := x.who(x.r)
	if err != nil {
		err = &whoError{err}
	}
	return who, err
}

// whoError means that the program does not say who the caller is.
type whoError struct{ error }

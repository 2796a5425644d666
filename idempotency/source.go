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

// source is where the key of a request comes from.
type source struct {
	// name is part of the claim's key.
	name string
	// place is where a client sends the key. It is empty if a function makes the key.
	place string
	// form is what the client sends there.
	form string
	// read returns keytext.ErrNoKey if there is no key.
	read     func(*front, *http.Request) (string, error)
	constant bool // every request has the same key
	content  bool // the key is made of what was sent, and belongs to its route

	// These are for Check: what the program passed, the parameters of the path, and the function.
	text   string
	params []string
	id     uintptr
}

func headerSource(name string) (source, error) {
	if !validToken(name) {
		return source{}, errors.New("pass the name of a header, for example Idempotency-Key")
	}
	name = http.CanonicalHeaderKey(name)
	return source{
		name: name, text: name, place: "the header " + name, form: keytext.KeyForm,
		read: func(_ *front, r *http.Request) (string, error) { return keytext.Parse(r.Header.Values(name)) },
	}, keptHeader(name)
}

func funcSource(fn func(r *http.Request) (string, error)) source {
	return source{
		name: "func", content: true, id: claim.Identity(fn),
		read: func(f *front, r *http.Request) (string, error) {
			key, err := fn(r)
			switch {
			case err != nil:
				f.warn(r, "idempotency: By: no key could be made; the request is refused", err)
				return "", keytext.ErrFunc
			case key == "":
				return "", keytext.ErrNoKey
			case !keytext.IsText(key):
				return "", keytext.ErrCharacter
			}
			return key, nil
		},
	}
}

func templateSource(template string) (source, error) {
	t, err := keytemplate.Parse(template)
	if err != nil {
		return source{}, err
	}
	fields, params := make(map[string]source, len(t.Fields())), []string(nil)
	for _, text := range t.Fields() {
		if fields[text], err = parseField(text); err != nil {
			return source{}, fmt.Errorf("key template %q: %w", template, err)
		}
		params = append(params, fields[text].params...)
	}
	read := func(f *front, r *http.Request) (string, error) {
		var failed error
		key, err := t.Key(func(text string) (string, error) {
			value, err := fields[text].read(f, r)
			if err != nil {
				failed = &fieldError{fields[text], err}
			}
			return value, failed
		})
		if failed != nil {
			return "", failed // the template is not for clients
		}
		return key, err
	}
	return source{
		name: "key " + template, read: read, constant: len(t.Fields()) == 0, content: true, text: template, params: params,
	}, nil
}

// fieldError names the field of a template that has no valid value.
type fieldError struct {
	source
	err error
}

func (e *fieldError) Error() string { return e.place + ": " + e.err.Error() }
func (e *fieldError) Unwrap() error { return e.err }

var errFields = errors.New("a field is {header.NAME}, {param.NAME}, {query.NAME}, {cookie.NAME}, {json.PATH} or {principal}")

// parseField returns the source of a field of a template.
func parseField(text string) (source, error) {
	if text == "principal" {
		return source{place: "the principal", read: principalKey}, nil
	}
	kind, name, _ := strings.Cut(text, ".")
	if name == "" {
		return source{}, fmt.Errorf("{%s}: %w", text, errFields)
	}
	value := func(what string, read func(*front, *http.Request) (string, error)) (source, error) {
		return source{place: what + name, form: keytext.ValueForm, read: read}, nil
	}
	switch kind {
	case "header":
		s, err := headerSource(name)
		if err != nil {
			err = fmt.Errorf("{%s}: %w", text, err)
		}
		return s, err
	case "param":
		s, err := value("the path parameter ", func(f *front, r *http.Request) (string, error) { return f.paramKey(r, name) })
		s.params = []string{name}
		return s, err
	case "query":
		return value("the query parameter ", func(_ *front, r *http.Request) (string, error) { return queryKey(r.URL.RawQuery, name) })
	case "cookie":
		if !validToken(name) {
			return source{}, fmt.Errorf("{%s}: %q is no name of a cookie", text, name)
		}
		return value("the cookie ", func(_ *front, r *http.Request) (string, error) { return cookieKey(r, name) })
	case "json":
		path := strings.Split(name, ".")
		if slices.Contains(path, "") {
			return source{}, fmt.Errorf("{%s}: the path has an empty part", text)
		}
		s, err := value("the JSON member ", func(f *front, r *http.Request) (string, error) { return f.jsonKey(r, path) })
		s.form = jsonForm
		return s, err
	}
	return source{}, fmt.Errorf("{%s}: %w", text, errFields)
}

// principalKey returns the caller's name. It is missing for an anonymous caller.
func principalKey(f *front, r *http.Request) (string, error) {
	who, err := f.who(r)
	switch {
	case err != nil:
		return "", &whoError{err}
	case who == "":
		return "", errNobody
	}
	return who, nil
}

// errNobody means that the caller is anonymous.
var errNobody = errors.New("the caller is not known")

// whoError means that the program does not say who the caller is.
type whoError struct{ error }

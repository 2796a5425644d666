package keytemplate

import (
	"errors"
	"fmt"

	"github.com/onelane/onelane/internal/keytext"
)

// Source is where the key of a request comes from. R is a request of an adapter.
type Source[R any] struct {
	// Name is part of a claim's key.
	Name string
	// Place is where a client sends the key, and Form is what it sends there. Both are empty if a
	// function makes the key.
	Place, Form string
	// Content means that the key is made of what was sent, and belongs to its route or method.
	Content bool
	// Constant means that every request has the same key. See [Source.Varies].
	Constant bool
	// Text is what the program passed: the name of a header, or a template. Of a function, Func is
	// the identity.
	Text string
	Func uintptr
	// Reads are the parameters of the path, or the fields of the message, that it reads.
	Reads []string
	// Read returns keytext.ErrNoKey if there is no key.
	Read func(R) (string, error)
}

// Varies returns an error if every request has the same key.
func (s Source[R]) Varies() error {
	if s.Constant {
		return errors.New("without a field every request would get the first answer: add one")
	}
	return nil
}

// Refused returns why no key could be read: a code of package idempotency, and what to tell the
// client beside its title. The error is one of Read.
func (s Source[R]) Refused(err error) (code, detail, correction string) {
	place, form := s.Place, s.Form
	if field, ok := errors.AsType[*FieldError](err); ok {
		place, form, err = field.Place, field.Form, field.Err
	}
	switch err {
	case keytext.ErrNobody:
		return "principal_missing", "", ""
	case keytext.ErrNoKey:
		return "idempotency_key_missing", "", keytext.Missing(place, form)
	}
	detail, correction = keytext.Refused(place, form, err)
	return "idempotency_key_invalid", detail, correction
}

// OfPrincipal returns the source of the caller's name, as a field of a template. Its error is that of
// who, or keytext.ErrNobody for an anonymous caller.
func OfPrincipal[R any](who func(R) (string, error)) Source[R] {
	return Source[R]{Place: "the principal", Read: func(r R) (string, error) {
		name, err := who(r)
		if name == "" && err == nil {
			err = keytext.ErrNobody
		}
		return name, err
	}}
}

// OfFunc returns the source of a function that makes keys. If it returns an error, the error of
// the source is the one that failed returns.
func OfFunc[R any](fn func(R) (string, error), failed func(R, error) error) Source[R] {
	return Source[R]{Name: "func", Content: true, Read: func(r R) (string, error) {
		key, err := fn(r)
		switch {
		case err != nil:
			return "", failed(r, err)
		case key == "":
			return "", keytext.ErrNoKey
		case !keytext.IsText(key):
			return "", keytext.ErrCharacter
		}
		return key, nil
	}}
}

// OfTemplate returns the source of a template. The function field says what its fields mean. If one
// of them has no valid value, the error of the source is a [*FieldError].
func OfTemplate[R any](text string, field func(name string) (Source[R], error)) (Source[R], error) {
	t, err := Parse(text)
	if err != nil {
		return Source[R]{}, err
	}
	s := Source[R]{Name: "key " + text, Text: text, Content: true, Constant: len(t.Fields()) == 0}
	fields := make(map[string]Source[R], len(t.Fields()))
	for _, name := range t.Fields() {
		f, err := field(name)
		if err != nil {
			return Source[R]{}, fmt.Errorf("key template %q: {%s}: %w", text, name, err)
		}
		fields[name], s.Reads = f, append(s.Reads, f.Reads...)
	}
	s.Read = func(r R) (string, error) {
		key, err := t.Key(func(name string) (string, error) {
			f := fields[name]
			value, err := f.Read(r)
			if err != nil {
				err = &FieldError{f.Place, f.Form, err}
			}
			return value, err
		})
		if failed, ok := errors.AsType[*FieldError](err); ok {
			return "", failed // the template is not for clients
		}
		return key, err
	}
	return s, nil
}

// FieldError says which field of a template has no valid value.
type FieldError struct {
	Place, Form string
	Err         error
}

// Error names the place of the field.
func (e *FieldError) Error() string { return e.Place + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

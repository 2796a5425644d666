package keytemplate_test

import (
	"errors"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/keytemplate"
	"github.com/onelane/onelane/internal/keytext"
)

// A request of these tests is a map of values.
type request map[string]string

func valueOf(name string) (keytemplate.Source[request], error) {
	if name == "wrong" {
		return keytemplate.Source[request]{}, errors.New("no such field")
	}
	return keytemplate.Source[request]{Place: "the value " + name, Form: "text", Reads: []string{name}, Read: func(r request) (string, error) {
		if r[name] == "" {
			return "", keytext.ErrNoKey
		}
		return r[name], nil
	}}, nil
}

func TestSource_OfTemplate(t *testing.T) {
	t.Parallel()
	s, err := keytemplate.OfTemplate("order:{a}:{b}", valueOf)
	if err != nil || s.Varies() != nil || len(s.Reads) != 2 || !s.Content {
		t.Fatalf("%+v, %v", s, err)
	}
	if key, err := s.Read(request{"a": "1", "b": "x:y"}); key != "order:1:"+core.Join("x:y") || err != nil {
		t.Errorf("%q, %v", key, err)
	}
	var field *keytemplate.FieldError
	if _, err := s.Read(request{"a": "1"}); !errors.As(err, &field) || field.Place != "the value b" || field.Form != "text" || !errors.Is(err, keytext.ErrNoKey) {
		t.Errorf("a missing value: %v", err)
	}
	if _, err := keytemplate.OfTemplate("{wrong}", valueOf); err == nil || err.Error() != `key template "{wrong}": {wrong}: no such field` {
		t.Errorf("a wrong field: %v", err)
	}
	if s, err := keytemplate.OfTemplate("all", valueOf); err != nil || s.Varies() == nil {
		t.Errorf("a template without a field: %+v, %v", s, err)
	}
}

func TestSource_OfFunc(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	s := keytemplate.OfFunc(func(r request) (string, error) {
		if r == nil {
			return "", failed
		}
		return r["key"], nil
	}, func(_ request, err error) error { return errors.Join(err, keytext.ErrFunc) })
	for want, r := range map[error]request{nil: {"key": "k"}, keytext.ErrNoKey: {}, keytext.ErrCharacter: {"key": "\n"}, keytext.ErrFunc: nil} {
		key, err := s.Read(r)
		if !errors.Is(err, want) || (key == "k") != (want == nil) {
			t.Errorf("%v: %q, %v", r, key, err)
		}
	}
}

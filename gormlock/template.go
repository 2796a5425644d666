package gormlock

import (
	"database/sql/driver"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
)

// template is a key with "{Field}" in it: literals[0], fields[0], literals[1], …
type template struct {
	source   string
	literals []string
	fields   []string
}

func parseTemplate(key string) (template, error) {
	t := template{source: key}
	for rest := key; ; {
		at := strings.IndexAny(rest, "{}")
		if at < 0 {
			t.literals = append(t.literals, rest)
			return t, nil
		}
		end := strings.IndexAny(rest[at+1:], "{}")
		if rest[at] == '}' || end < 1 || rest[at+1+end] != '}' {
			return t, fmt.Errorf(`%w: braces must be pairs with the name of a field between them, as in "stock:{SKU}"; a key that has braces for another reason goes to WithGuard or Transaction`, ErrTemplate)
		}
		t.literals = append(t.literals, rest[:at])
		t.fields = append(t.fields, rest[at+1:at+1+end])
		rest = rest[at+end+2:]
	}
}

// text is the key for a statement; open says that it is in a transaction.
func (t template) text(s *gorm.Statement, open bool) (string, error) {
	if len(t.fields) == 0 {
		return t.source, nil
	}
	if open {
		return "", fmt.Errorf("%w in a transaction, which has many statements: use a literal key", ErrTemplate)
	}
	model := reflect.ValueOf(s.Model)
	for model.Kind() == reflect.Pointer && !model.IsNil() {
		model = model.Elem()
	}
	if s.Schema == nil || model.Kind() != reflect.Struct || model.Type() != s.Schema.ModelType {
		return "", fmt.Errorf("%w: the statement must have one model, a struct, to take the fields from; use a literal key, or WithGuard with several", ErrTemplate)
	}
	var b strings.Builder
	for i, name := range t.fields {
		field := s.Schema.LookUpField(name)
		if field == nil {
			return "", fmt.Errorf("%w: model %s has no field %q", ErrTemplate, s.Schema.Name, name)
		}
		value, zero := field.ValueOf(s.Context, model)
		if zero {
			return "", fmt.Errorf("%w: field %s.%s of the model is empty; conditions of a Where do not count", ErrTemplate, s.Schema.Name, name)
		}
		part, err := keyPart(value)
		if err != nil {
			return "", fmt.Errorf("%w: field %s.%s: %w", ErrTemplate, s.Schema.Name, name, err)
		}
		b.WriteString(t.literals[i])
		b.WriteString(core.Join(part)) // so that different values never make the same key
	}
	b.WriteString(t.literals[len(t.fields)])
	return b.String(), nil
}

// keyPart is the text of a field in a key.
func keyPart(value any) (string, error) {
	if v, ok := value.(driver.Valuer); ok {
		var err error
		if value, err = v.Value(); err != nil {
			return "", err
		}
	}
	v := reflect.Indirect(reflect.ValueOf(value))
	switch {
	case !v.IsValid():
		return "", fmt.Errorf("it is NULL")
	case v.Kind() == reflect.String:
		return v.String(), nil
	case v.CanInt():
		return strconv.FormatInt(v.Int(), 10), nil
	case v.CanUint():
		return strconv.FormatUint(v.Uint(), 10), nil
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		return string(v.Bytes()), nil
	}
	return "", fmt.Errorf("%v is neither a text nor a whole number", v.Type())
}

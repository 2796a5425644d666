package gormlock

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/keytemplate"
)

// keys is what a guard locks: literal keys, or a template for the fields of a statement's model.
type keys struct {
	text     string // that the user wrote
	ready    []string
	template keytemplate.Template
}

func parseKeys(text string) (keys, error) {
	if !strings.ContainsAny(text, "{}") {
		return keys{text: text, ready: []string{text}}, nil
	}
	t, err := keytemplate.Parse(text)
	if err != nil {
		err = fmt.Errorf("%w: %w; pass a key with literal braces to WithGuard or Transaction", ErrTemplate, err)
	}
	return keys{text: text, template: t}, err
}

// of returns the keys for a statement, one for each row of its model. open reports whether the
// statement is in a transaction.
func (k keys) of(s *gorm.Statement, open bool) ([]string, error) {
	if k.ready != nil {
		return k.ready, nil
	}
	if open {
		return nil, fmt.Errorf("%w in a transaction, which has many statements: use a literal key", ErrTemplate)
	}
	rows, err := modelRows(s)
	if err != nil {
		return nil, err
	}
	all := make([]string, 0, len(rows))
	for _, row := range rows {
		key, err := k.template.Key(func(name string) (string, error) { return fieldPart(s, row, name) })
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
		}
		all = append(all, key)
	}
	return all, nil
}

// modelRows returns the structs of a statement: its model, or each element if that is a slice.
func modelRows(s *gorm.Statement) ([]reflect.Value, error) {
	refused := fmt.Errorf("%w: the statement must have a model, a struct or a slice of them, "+
		"to take the fields from; use a literal key, or WithGuard with several", ErrTemplate)
	model := s.Model
	// In a statement that is used again, Model is what it created first.
	if slices.Contains(s.BuildClauses, "INSERT") && len(structsOf(reflect.ValueOf(s.Dest))) > 0 {
		model = s.Dest
	}
	rows := elements(reflect.ValueOf(model))
	other := func(row reflect.Value) bool { return !row.IsValid() || row.Type() != s.Schema.ModelType }
	if s.Schema == nil || len(rows) == 0 || slices.ContainsFunc(rows, other) {
		return nil, refused
	}
	return rows, nil
}

func pointedAt(v reflect.Value) reflect.Value {
	for (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && !v.IsNil() {
		v = v.Elem()
	}
	return v
}

// fieldPart returns the text of a model's field in a key.
func fieldPart(s *gorm.Statement, row reflect.Value, name string) (string, error) {
	field := s.Schema.LookUpField(name)
	if field == nil {
		return "", fmt.Errorf("model %s has no such field", s.Schema.Name)
	}
	value, zero := field.ValueOf(s.Context, row)
	if zero {
		return "", fmt.Errorf("the field of the %s is empty; conditions of a Where do not count", s.Schema.Name)
	}
	return keyPart(value)
}

// keyPart returns the text of a field in a key.
func keyPart(value any) (string, error) {
	if v, ok := value.(driver.Valuer); ok {
		first, err := v.Value()
		if err != nil {
			return "", err
		}
		if value, err = v.Value(); err != nil {
			return "", err
		}
		if !reflect.DeepEqual(first, value) { // each caller would have a key of its own
			return "", errors.New("its Valuer or serializer makes another value each time, as encryption may: use a literal key")
		}
	}
	v := reflect.Indirect(reflect.ValueOf(value))
	switch {
	case !v.IsValid():
		return "", errors.New("it is NULL")
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

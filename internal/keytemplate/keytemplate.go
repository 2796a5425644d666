// Package keytemplate makes keys from templates such as "order:{param.id}:{header.X-User}".
package keytemplate

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/onelane/onelane/core"
)

// maxTemplate is the longest key that core takes.
const maxTemplate = 512

// Template is a key with fields in braces. The adapters take the values of the fields from the
// request or the model. The key of the zero Template is empty. It is safe for concurrent use.
type Template struct {
	text     string
	literals []string // one more than fields: literals[0], fields[0], literals[1], …
	fields   []string
}

// Parse reads a template. A field is text in braces. The text around fields stands for itself.
// Between two fields there must be a ":", because different values could make the same key
// otherwise. [Template.Key] escapes ":" in values. The error says what to change.
func Parse(text string) (Template, error) {
	t, err := parse(text)
	if err != nil {
		return Template{}, fmt.Errorf("key template %q: %w", text, err)
	}
	return t, nil
}

func parse(text string) (Template, error) {
	switch {
	case text == "":
		return Template{}, errors.New("the template is empty")
	case len(text) > maxTemplate:
		return Template{}, fmt.Errorf("it has %d bytes; at most %d are allowed", len(text), maxTemplate)
	case !utf8.ValidString(text) || strings.IndexFunc(text, unicode.IsControl) >= 0:
		return Template{}, errors.New("it must be UTF-8 without control characters")
	}
	t := Template{text: text}
	for rest := text; ; {
		literal, after, found := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return Template{}, errors.New(`a "}" has no "{" before it`)
		}
		if found && len(t.fields) > 0 && !strings.Contains(literal, ":") {
			return Template{}, errors.New(`put a ":" between two fields, or different values could make the same key`)
		}
		t.literals = append(t.literals, literal)
		if !found {
			return t, nil
		}
		field, next, closed := strings.Cut(after, "}")
		if !closed || field == "" || strings.Contains(field, "{") {
			return Template{}, errors.New(`braces must be pairs with the name of a field between them, as in "stock:{SKU}"`)
		}
		t.fields = append(t.fields, field)
		rest = next
	}
}

// String returns the template as it was parsed.
func (t Template) String() string { return t.text }

// Fields returns the names of the fields in their order, with repetitions. It must not be modified.
func (t Template) Fields() []string { return t.fields }

// Key returns the key for the values of the fields. Each value is escaped as in [core.Join], so
// different values make different keys. An empty value is an error, because many requests would
// share its key. An error of value is wrapped with the template and the field.
func (t Template) Key(value func(field string) (string, error)) (string, error) {
	if len(t.fields) == 0 {
		return t.text, nil
	}
	var b strings.Builder
	for i, field := range t.fields {
		v, err := value(field)
		if err != nil {
			return "", fmt.Errorf("key template %q: {%s}: %w", t.text, field, err)
		}
		if v == "" {
			return "", fmt.Errorf("key template %q: {%s} is empty", t.text, field)
		}
		b.WriteString(t.literals[i])
		b.WriteString(core.Join(v))
	}
	b.WriteString(t.literals[len(t.fields)])
	return b.String(), nil
}

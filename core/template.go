package core

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Template is a key with fields in braces, such as "order:{param.id}:{header.X-User}": the adapters take their values
// from the request or the model. The zero Template has no key. It is safe for concurrent use.
type Template struct {
	text     string
	literals []string // one more than fields: literals[0], fields[0], literals[1], …
	fields   []string
}

// ParseTemplate reads a template. A field is any text without braces in braces; text around fields stands for itself,
// and braces for nothing else. Between two fields there must be a ":", which their values cannot have (see
// [Template.Key]): otherwise other values could make the same key. The error says what to change.
func ParseTemplate(text string) (Template, error) {
	refuse := func(why string) (Template, error) {
		return Template{}, fmt.Errorf("core: key template %q: %s", text, why)
	}
	switch {
	case text == "":
		return refuse("it is empty")
	case len(text) > maxKey:
		return refuse(fmt.Sprintf("it has %d bytes, at most %d are allowed", len(text), maxKey))
	case !utf8.ValidString(text) || strings.IndexFunc(text, unicode.IsControl) >= 0:
		return refuse("it must be UTF-8 without control characters")
	}
	t := Template{text: text}
	for rest := text; ; {
		literal, after, found := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return refuse(`there is a "}" without its "{"`)
		}
		if found && len(t.fields) > 0 && !strings.Contains(literal, ":") {
			return refuse(`put a ":" between two fields, or other values could make the same key`)
		}
		t.literals = append(t.literals, literal)
		if !found {
			return t, nil
		}
		field, next, closed := strings.Cut(after, "}")
		if !closed || field == "" || strings.Contains(field, "{") {
			return refuse(`braces must be pairs with the name of a field between them, as in "stock:{SKU}"`)
		}
		t.fields = append(t.fields, field)
		rest = next
	}
}

// String returns the template as it was parsed.
func (t Template) String() string { return t.text }

// Fields returns the names of the fields in their order, also those that come twice. It must not be modified.
func (t Template) Fields() []string { return t.fields }

// Key returns the key with the value of each field, escaped as by [Join]: with other values it is another key. An
// empty value is an error, since many requests would share its key, and so is one that value reports; it is wrapped,
// with the template and the field.
func (t Template) Key(value func(field string) (string, error)) (string, error) {
	if len(t.fields) == 0 {
		return t.text, nil
	}
	var b strings.Builder
	for i, field := range t.fields {
		v, err := value(field)
		if err != nil {
			return "", fmt.Errorf("core: key template %q: {%s}: %w", t.text, field, err)
		}
		if v == "" {
			return "", fmt.Errorf("core: key template %q: {%s} is empty", t.text, field)
		}
		b.WriteString(t.literals[i])
		_, _ = joinEscape.WriteString(&b, v)
	}
	b.WriteString(t.literals[len(t.fields)])
	return b.String(), nil
}

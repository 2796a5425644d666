package keytemplate_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onelane/onelane/internal/keytemplate"
)

func TestTemplate_Key(t *testing.T) {
	t.Parallel()
	values := map[string]string{"a": "1", "b": "x:y%", "c.d-E": "中文"}
	for text, want := range map[string]struct {
		key    string
		fields []string
	}{
		"stock:42":      {key: "stock:42"},
		"{a}":           {key: "1", fields: []string{"a"}},
		"s:{a}:{b}.":    {key: "s:1:x%3Ay%25.", fields: []string{"a", "b"}},
		"{c.d-E} : {a}": {key: "中文 : 1", fields: []string{"c.d-E", "a"}},
		"{a}:{a}":       {key: "1:1", fields: []string{"a", "a"}},
	} {
		parsed, err := keytemplate.Parse(text)
		ok(t, text, err)
		key, err := parsed.Key(func(field string) (string, error) { return values[field], nil })
		ok(t, text, err)
		if key != want.key || !slices.Equal(parsed.Fields(), want.fields) || parsed.String() != text {
			t.Errorf("%q: key %q, fields %q, text %q", text, key, parsed.Fields(), parsed)
		}
	}
}

func TestParse_Refuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "{", "}", "a{", "a}b", "{}", "{{a}}", "{a{b}}", "{a}}", "{a", "a\n{b}", "\xff", strings.Repeat("x", 513),
		"{a}{b}", "{a}-{b}", "x:{a}y{b}",
	} {
		if _, err := keytemplate.Parse(text); err == nil || !strings.Contains(err.Error(), "key template") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestTemplate_Key_errors(t *testing.T) {
	t.Parallel()
	parsed, err := keytemplate.Parse("order:{id}")
	ok(t, "Parse", err)
	cause := errors.New("no such field")
	_, err = parsed.Key(func(string) (string, error) { return "", cause })
	if !errors.Is(err, cause) {
		t.Errorf("Key: got %v, want an error that matches %v", err, cause)
	}
	if !strings.Contains(err.Error(), `"order:{id}"`) || !strings.Contains(err.Error(), "{id}") {
		t.Errorf("the error does not name the template and the field: %v", err)
	}
	if _, err = parsed.Key(func(string) (string, error) { return "", nil }); err == nil {
		t.Error("an empty value made a key")
	}
}

// Different values make different keys, whatever the template is.
func FuzzTemplate_KeysDiffer(f *testing.F) {
	f.Add("{a}:{b}", "x:y", "z", "x", "y:z")
	f.Add("{a}::{b}", ":", "", "", ":")
	f.Add("x{a}y:%3A{b}z", "y:", "%", "y%3A", "%25")
	f.Fuzz(func(t *testing.T, text, a, b, c, d string) {
		parsed, err := keytemplate.Parse(text)
		if err != nil || len(parsed.Fields()) != 2 || parsed.Fields()[0] == parsed.Fields()[1] {
			return
		}
		key := func(first, second string) (string, error) {
			return parsed.Key(func(field string) (string, error) {
				if field == parsed.Fields()[0] {
					return first, nil
				}
				return second, nil
			})
		}
		one, errOne := key(a, b)
		two, errTwo := key(c, d)
		if errOne == nil && errTwo == nil && one == two && (a != c || b != d) {
			t.Errorf("%q: (%q, %q) and (%q, %q) are both %q", text, a, b, c, d, one)
		}
	})
}

func ok(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func ExampleParse() {
	template, err := keytemplate.Parse("order:{param.id}:{header.X-User}")
	if err != nil {
		panic(err)
	}
	fmt.Println(template.Fields())
	request := map[string]string{"param.id": "7", "header.X-User": "ann:b"}
	fmt.Println(template.Key(func(field string) (string, error) { return request[field], nil }))
	// Output:
	// [param.id header.X-User]
	// order:7:ann%3Ab <nil>
}

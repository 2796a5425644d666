package keytext_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/onelane/onelane/internal/keytext"
)

func TestParse(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 255)
	for line, want := range map[string]string{
		`k`: "k", `"k"`: "k", ` "k" `: "k", `"a\"b\\"`: `a"b\`, `"a, b"`: "a, b", `"k";v=1`: "k", `"k" ; v`: "k", `"k";v=","`: "k", `"k";v="a\",";w`: "k", `a;b`: "a;b", `a\b`: `a\b`,
		long: long, `"` + long + `"`: long,
	} {
		if key, err := keytext.Parse([]string{line}); err != nil || key != want {
			t.Errorf("%.20s is %q, %v; want %q", line, key, err, want)
		}
	}
	for _, line := range []string{"", `""`, " ", "a, b", `"a", "b"`, `"a";v=1, "b"`, `"a";v="\"", "b"`, `"a"; , `, `"a";"b`, `"a" b`, `"a`, `a"`, `"a\b"`, `"a\`, "a\nb", "é", "\x7f", `"é"`, long + "x"} {
		if key, err := keytext.Parse([]string{line}); err == nil || key != "" || errors.Is(err, keytext.ErrNoKey) {
			t.Errorf("%q is %q, %v", line, key, err)
		}
	}
	if _, err := keytext.Parse(nil); err != keytext.ErrNoKey {
		t.Errorf("no header: %v", err)
	}
	if _, err := keytext.Parse([]string{"a", "a"}); err == nil || err == keytext.ErrNoKey {
		t.Errorf("a repeated header: %v", err)
	}
}

func TestFormat_Refuses(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "a\nb", "é", strings.Repeat("x", 256)} {
		if value, err := keytext.Format(key); err == nil || value != "" {
			t.Errorf("%.9q became %q", key, value)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{``, `k`, `"k"`, `"a\"b"`, `"a", "b"`, `"`, `"\`, "\x00", "é", ` "k" `, `a;b`, `"a";b`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, err := keytext.Parse([]string{line})
		if err != nil {
			if key != "" {
				t.Fatalf("%q: key %q beside %v", line, key, err)
			}
			return
		}
		if key == "" || len(key) > 255 || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%q made the key %q", line, key)
		}
		quoted, err := keytext.Format(key)
		if err != nil {
			t.Fatalf("%q: %q: %v", line, key, err)
		}
		if again, err := keytext.Parse([]string{quoted}); err != nil || again != key {
			t.Fatalf("%q: %q is %q, %v", line, quoted, again, err)
		}
	})
}

package idempotency_test

import (
	"strings"
	"testing"

	"github.com/onelane/onelane/idempotency"
)

func TestCredentials(t *testing.T) {
	t.Parallel()
	seen := map[[32]byte][3][]string{}
	for _, c := range [][3][]string{
		{}, {nil, nil, {""}}, {nil, nil, {"a"}}, {{""}, nil}, {nil, {""}}, {{"a"}, nil}, {nil, {"a"}}, {{"a"}, {"a"}}, {{"a", "a"}, nil}, {{"aa"}, nil},
	} {
		d := idempotency.Credentials(c[0], c[1], c[2])
		if other, ok := seen[d]; ok {
			t.Errorf("%q and %q look alike", c, other)
		}
		seen[d] = c
	}
}

func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{``, `k`, `"k"`, `"a\"b"`, `"a", "b"`, `"`, `"\`, "\x00", "é", ` "k" `, `a;b`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, err := idempotency.ParseKey([]string{line})
		if err != nil {
			if key != "" {
				t.Fatalf("%q: key %q beside %v", line, key, err)
			}
			return
		}
		if key == "" || len(key) > 255 || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%q made the key %q", line, key)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := idempotency.ParseKey([]string{quoted}); err != nil || again != key {
			t.Fatalf("%q: %q in quotes is %q, %v", line, key, again, err)
		}
	})
}

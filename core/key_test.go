package core_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestKeys_Rules(t *testing.T) {
	t.Parallel()
	l, bare := locker(t, backendtest.Memory()), locker(t, backendtest.Memory(), core.WithPrefix(""))
	for _, key := range []string{"", strings.Repeat("x", 513), "a\nb", "a\x00b", "a\x7f", "\xff", "a\u0085b"} {
		_, err := l.TryAcquire(t.Context(), key)
		want(t, "TryAcquire", err, core.ErrInvalidKey)
		want(t, "Unseal", l.Unseal(t.Context(), key), core.ErrInvalidKey)
		_, err = l.Inspect(t.Context(), key)
		want(t, "Inspect", err, core.ErrInvalidKey)
		_, err = l.AcquireAll(t.Context(), []string{"fine", key})
		want(t, "AcquireAll", err, core.ErrInvalidKey)
	}
	for _, key := range []string{"a", strings.Repeat("x", 512), "订单:42", "{a}", "}{", "a b", "%7B"} {
		ok(t, key, acquire(t, l, key).Release(t.Context()))
	}
	_, err := bare.TryAcquire(t.Context(), "{a}")
	want(t, "braces without a prefix", err, core.ErrInvalidKey)
	ok(t, "without a prefix", acquire(t, bare, "a:b").Release(t.Context()))
}

func TestJoin(t *testing.T) {
	t.Parallel()
	for want, parts := range map[string][]string{
		"stock:42": {"stock", "42"}, "a%3Ab:c": {"a:b", "c"}, "a:b%3Ac": {"a", "b:c"}, "a%253Ab": {"a%3Ab"}, ":": {"", ""}, "": {},
	} {
		if got := core.Join(parts...); got != want {
			t.Errorf("Join(%q) = %q, want %q", parts, got, want)
		}
	}
}

func FuzzJoin_IsInjective(f *testing.F) {
	f.Add("a:b", "c", "a", "b:c")
	f.Add("%3A", "", ":", "")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		if (a != c || b != d) && core.Join(a, b) == core.Join(c, d) {
			t.Errorf("Join(%q, %q) = Join(%q, %q)", a, b, c, d)
		}
		if core.Join(a, b) == core.Join(c) {
			t.Errorf("Join(%q, %q) = Join(%q)", a, b, c)
		}
	})
}

// Two keys never share a name in the backend.
func FuzzBackendKey_IsInjective(f *testing.F) {
	f.Add("{a}", "a")
	f.Add("%7Ba", "{a")
	f.Add("}x{", "a}")
	f.Fuzz(func(t *testing.T, a, b string) {
		na, errA := core.BackendKey("onelane:", a)
		nb, errB := core.BackendKey("onelane:", b)
		for _, err := range []error{errA, errB} {
			if err != nil && !errors.Is(err, core.ErrInvalidKey) {
				t.Fatal(err)
			}
		}
		if errA != nil || errB != nil {
			return
		}
		if a != b && na == nb {
			t.Errorf("%q and %q are both %q", a, b, na)
		}
	})
}

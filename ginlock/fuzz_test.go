package ginlock_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/onelane/onelane/ginlock"
)

// A template is refused at wiring with a sentence, or makes a middleware.
func FuzzLockByKey(f *testing.F) {
	for _, seed := range []string{"a", "order:{param.id}:{header.X-User}", "{json.a.b}", "{cookie.c}:{query.q}", "{principal}", "{", "{}", "{json.}", "{json.a..b}", "{header. }", "a{x}b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, template string) {
		defer func() {
			if p := recover(); p != nil && !strings.HasPrefix(fmt.Sprint(p), "idempotency: LockByKey") {
				t.Fatalf("%q: %v", template, p)
			}
		}()
		if ginlock.LockByKey(template) == nil {
			t.Fatal("no middleware")
		}
	})
}

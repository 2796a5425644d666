package gormlock

import (
	"strings"
	"testing"
)

// TestStatementsIn_Windows: git for Windows writes \r\n into a checkout, also of a vendored copy.
// MySQL refuses the empty statement that would be left.
func TestStatementsIn_Windows(t *testing.T) {
	t.Parallel()
	for name := range dialects {
		schema, err := schemas.ReadFile("schema/" + name + ".sql")
		if err != nil {
			t.Fatal(err)
		}
		for s := range statementsIn(strings.ReplaceAll(string(schema), "\n", "\r\n")) {
			if strings.TrimSpace(s) == "" {
				t.Errorf("%s: the statement %q", name, s)
			}
		}
	}
}

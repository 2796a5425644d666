package sqltable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStatementsIn_Windows: git for Windows writes \r\n into a checkout, even of a vendored copy.
// MySQL refuses the empty statement that would be left.
func TestStatementsIn_Windows(t *testing.T) {
	t.Parallel()
	n := 0
	for _, folder := range []string{"../../gormlock", "../../core/sqlbackend"} {
		for name := range dialects {
			schema, err := os.ReadFile(filepath.Join(folder, "schema", name+".sql"))
			if err != nil {
				t.Fatal(err)
			}
			for s := range statementsIn(strings.ReplaceAll(string(schema), "\n", "\r\n")) {
				if n++; strings.TrimSpace(s) == "" {
					t.Errorf("%s, %s: the statement %q", folder, name, s)
				}
			}
		}
	}
	if n < 9 {
		t.Errorf("%d statements: this test misses what it is for", n)
	}
}

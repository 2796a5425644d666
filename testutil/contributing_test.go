package testutil_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The table in CONTRIBUTING.md has a line for each file of core and the backends.
func TestContributing_ListsEachFile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	var listed, there []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(core/[a-z_/]+\\.go)` \\| .+ \\|$").FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, row[1])
	}
	for _, folder := range []string{"core", "core/redisbackend", "core/zkbackend", "core/etcdbackend", "core/sqlbackend"} {
		files, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				there = append(there, folder+"/"+filepath.Base(file))
			}
		}
	}
	for _, file := range there {
		if !slices.Contains(listed, file) {
			t.Errorf("CONTRIBUTING.md does not say what %s is", file)
		}
	}
	for _, file := range listed {
		if !slices.Contains(there, file) {
			t.Errorf("CONTRIBUTING.md lists %s, which does not exist", file)
		}
	}
}

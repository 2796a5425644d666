package testutil_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readme is a README as its tests see it.
type readme struct {
	headings []string // "##" for each, in order
	fences   []fence
	links    []string // that lead to a file
	tests    []string // "core.TestX": what its table of features names
	tables   []int    // columns of each row
}

type fence struct{ language, code string }

var (
	link     = regexp.MustCompile(`\]\(([^)#:]+)\)`)
	testName = regexp.MustCompile("`([a-z]+)\\.(Test[A-Za-z0-9_]+)`")
)

func readReadme(t *testing.T, name string) readme {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	var r readme
	var open *fence
	for line := range strings.Lines(string(data)) {
		language, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && open != nil:
			r.fences, open = append(r.fences, *open), nil
		case isFence:
			open = &fence{language: language}
		case open != nil:
			open.code += line
		case strings.HasPrefix(line, "#"):
			r.headings = append(r.headings, line[:strings.Index(line, " ")])
		case strings.HasPrefix(line, "|"):
			r.tables = append(r.tables, strings.Count(line, "|"))
		}
		if open == nil {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				r.links = append(r.links, m[1])
			}
			for _, m := range testName.FindAllStringSubmatch(line, -1) {
				r.tests = append(r.tests, m[1]+"."+m[2])
			}
		}
	}
	if len(r.headings) < 10 || len(r.fences) < 8 || len(r.tests) < 10 {
		t.Fatalf("%s has %d headings, %d fences and %d tests: it was not read", name, len(r.headings), len(r.fences), len(r.tests))
	}
	return r
}

// The two READMEs say the same: the same headings, code, tables, links and tests, in the same order.
func TestReadme_BothLanguagesAreTheSame(t *testing.T) {
	english, chinese := readReadme(t, "README.md"), readReadme(t, "README.zh-CN.md")
	if !slices.Equal(english.headings, chinese.headings) {
		t.Errorf("headings differ: %q and %q", english.headings, chinese.headings)
	}
	if !slices.Equal(english.tables, chinese.tables) {
		t.Errorf("tables differ: rows with %v and %v bars", english.tables, chinese.tables)
	}
	if !slices.Equal(english.links, chinese.links) {
		t.Errorf("links differ: %q and %q", english.links, chinese.links)
	}
	if !slices.Equal(english.tests, chinese.tests) {
		t.Errorf("tests differ: %q and %q", english.tests, chinese.tests)
	}
	if len(english.fences) != len(chinese.fences) {
		t.Fatalf("%d and %d fences", len(english.fences), len(chinese.fences))
	}
	for i, f := range english.fences {
		if chinese.fences[i] != f {
			t.Errorf("fence %d differs:\n%s\nand\n%s", i+1, f.code, chinese.fences[i].code)
		}
	}
}

// Go in the README is in a program or a test, line for line, and so is known to compile.
func TestReadme_GoIsCompiled(t *testing.T) {
	var sources []string
	for _, pattern := range []string{"../examples/*/*.go", "../*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, undented(string(data)))
		}
	}
	for _, f := range readReadme(t, "README.md").fences {
		code := undented(f.code)
		if f.language == "go" && !slices.ContainsFunc(sources, func(source string) bool { return strings.Contains(source, code) }) {
			t.Errorf("this is in no example and no test:\n%s", f.code)
		}
	}
}

// undented is code without its indentation.
func undented(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// What the README names is there: files, and tests.
func TestReadme_NamesWhatIsThere(t *testing.T) {
	r := readReadme(t, "README.md")
	for _, path := range r.links {
		if _, err := os.Stat(filepath.Join("..", path)); err != nil {
			t.Error(err)
		}
	}
	for _, name := range r.tests {
		if folder, test, _ := strings.Cut(name, "."); !hasTest(t, folder, test) {
			t.Errorf("there is no test %s", name)
		}
	}
}

// hasTest reports whether a package or one below it has a test of this name. A folder of core may be
// named without core.
func hasTest(t *testing.T, folder, test string) bool {
	t.Helper()
	var files []string
	for _, place := range []string{folder, folder + "/*", "core/" + folder, "core/redisbackend/" + folder} {
		found, err := filepath.Glob(filepath.Join("..", place, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		data, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(data), "func "+test+"(")
	})
}

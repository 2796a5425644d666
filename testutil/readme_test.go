package testutil_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxReadmeLines is how long a README may be: people finish it.
const maxReadmeLines = 170

// translated are the pages that exist in two languages.
var translated = map[string]string{
	"README.md":            "README.zh-CN.md",
	"docs/guarantees.md":   "docs/zh-CN/guarantees.md",
	"docs/features.md":     "docs/zh-CN/features.md",
	"docs/idempotency.md":  "docs/zh-CN/idempotency.md",
	"docs/consumers.md":    "docs/zh-CN/consumers.md",
	"docs/gorm.md":         "docs/zh-CN/gorm.md",
	"docs/how-it-works.md": "docs/zh-CN/how-it-works.md",
	"docs/torture.md":      "docs/zh-CN/torture.md",
}

// page is a page of Markdown as its tests see it.
type page struct {
	name     string
	lines    int
	levels   []string // "##" for each heading, in order
	anchors  []string // of the headings, as GitHub makes them
	fences   []fence
	links    []string // to files of this repository, maybe with "#anchor"
	tests    []string // "core.TestX" in tables
	tables   []int    // columns of each row
	listings int      // list items
}

type fence struct{ language, code string }

var (
	link     = regexp.MustCompile(`\]\(([^)]+)\)`)
	testName = regexp.MustCompile("`([a-z]+)\\.(Test[A-Za-z0-9_]+)`")
	listItem = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	notSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

func readPage(t *testing.T, name string) page {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	p := page{name: name}
	var open *fence
	for line := range strings.Lines(string(data)) {
		p.lines++
		language, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && open != nil:
			p.fences, open = append(p.fences, *open), nil
			continue
		case isFence:
			open = &fence{language: language}
			continue
		case open != nil:
			open.code += line
			continue
		}
		p.readLine(line)
	}
	if open != nil {
		t.Errorf("%s: a fence is not closed", name)
	}
	return p
}

// readLine reads a line outside of fences.
func (p *page) readLine(line string) {
	switch {
	case strings.HasPrefix(line, "#"):
		level, title, _ := strings.Cut(strings.TrimSpace(line), " ")
		p.levels = append(p.levels, level)
		p.anchors = append(p.anchors, strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(title), ""), " ", "-"))
	case strings.HasPrefix(line, "|"):
		p.tables = append(p.tables, strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"))
		for _, m := range testName.FindAllStringSubmatch(line, -1) {
			p.tests = append(p.tests, m[1]+"."+m[2])
		}
	case listItem.MatchString(line):
		p.listings++
	}
	for _, m := range link.FindAllStringSubmatch(line, -1) {
		if !strings.Contains(m[1], "://") {
			p.links = append(p.links, m[1])
		}
	}
}

// target returns the file and the anchor that a link of a page leads to.
func (p page) target(to string) (file, anchor string) {
	file, anchor, _ = strings.Cut(to, "#")
	if file == "" {
		return p.name, anchor
	}
	return filepath.ToSlash(filepath.Join(filepath.Dir(filepath.FromSlash(p.name)), filepath.FromSlash(file))), anchor
}

// pages returns the names of all pages of the repository.
func pages(t *testing.T) (names []string) {
	t.Helper()
	walk(t, func(name string) {
		if strings.HasSuffix(name, ".md") {
			names = append(names, name)
		}
	})
	if len(names) < 15 {
		t.Fatalf("only %d pages were found: %q", len(names), names)
	}
	return names
}

// walk calls visit with each file of the repository that is not hidden.
func walk(t *testing.T, visit func(name string)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(".."), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !d.IsDir():
			visit(name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Both languages have the same headings, code, tables, lists, links and tests, in the same order.
func TestDocs_LanguagesInStep(t *testing.T) {
	for name, other := range translated {
		english, chinese := readPage(t, name), readPage(t, other)
		if !slices.Equal(english.levels, chinese.levels) {
			t.Errorf("%s: headings differ: %q and %q", name, english.levels, chinese.levels)
		}
		if !slices.Equal(english.tables, chinese.tables) {
			t.Errorf("%s: tables differ: rows with %v and %v bars", name, english.tables, chinese.tables)
		}
		if english.listings != chinese.listings {
			t.Errorf("%s: %d and %d list items", name, english.listings, chinese.listings)
		}
		if !slices.Equal(english.tests, chinese.tests) {
			t.Errorf("%s: tests differ: %q and %q", name, english.tests, chinese.tests)
		}
		if a, b := targets(english), targets(chinese); !slices.Equal(a, b) {
			t.Errorf("%s: links differ:\n%q\n%q", name, a, b)
		}
		if !slices.Equal(english.fences, chinese.fences) {
			t.Errorf("%s: fences differ:\n%q\n%q", name, english.fences, chinese.fences)
		}
	}
}

// targets are the files that a page links to, whatever their language. The order inside a line may
// differ between languages.
func targets(p page) (files []string) {
	for _, to := range p.links {
		file, _ := p.target(to)
		for english, chinese := range translated {
			if file == chinese {
				file = english
			}
		}
		files = append(files, file)
	}
	slices.Sort(files)
	return files
}

// Go in README.md and docs/ is in a program or a test, line for line, and so is known to compile.
func TestDocs_GoIsCompiled(t *testing.T) {
	var sources []string
	walk(t, func(name string) {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "examples/") && strings.HasSuffix(name, ".go") {
			data, err := os.ReadFile(filepath.Join("..", name))
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, undented(string(data)))
		}
	})
	checked := 0
	for _, name := range pages(t) {
		for _, f := range readPage(t, name).fences {
			if f.language != "go" {
				continue
			}
			checked++
			code := undented(f.code)
			if !slices.ContainsFunc(sources, func(source string) bool { return strings.Contains(source, code) }) {
				t.Errorf("%s: this is in no example and no test:\n%s", name, f.code)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d fences of Go were checked", checked)
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

// The files, the headings and the tests that pages name exist.
func TestDocs_NamesExist(t *testing.T) {
	named := 0
	for _, name := range pages(t) {
		p := readPage(t, name)
		for _, to := range p.links {
			file, anchor := p.target(to)
			if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(file))); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if anchor != "" && !slices.Contains(readPage(t, file).anchors, anchor) {
				t.Errorf("%s: %s has no heading #%s", name, file, anchor)
			}
		}
		for _, test := range p.tests {
			named++
			if folder, test, _ := strings.Cut(test, "."); !hasTest(t, folder, test) {
				t.Errorf("%s: there is no test %s.%s", name, folder, test)
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d tests are named", named)
	}
}

// The README is short, and leads to each page of docs/.
func TestReadme_IsShortAndLeadsOn(t *testing.T) {
	for _, name := range []string{"README.md", "README.zh-CN.md"} {
		p := readPage(t, name)
		if p.lines > maxReadmeLines {
			t.Errorf("%s has %d lines, and may have %d", name, p.lines, maxReadmeLines)
		}
		linked := targets(p)
		for _, other := range pages(t) {
			if filepath.ToSlash(filepath.Dir(other)) == "docs" && !slices.Contains(linked, other) {
				t.Errorf("%s does not lead to %s", name, other)
			}
		}
	}
}

// hasTest reports whether a package or one below it has a test of this name. A folder of core may be
// named without core.
func hasTest(t *testing.T, folder, test string) bool {
	t.Helper()
	var files []string
	for _, place := range []string{folder, folder + "/*", "core/" + folder, "core/redisbackend/" + folder, "gormlock/" + folder, "internal/" + folder} {
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

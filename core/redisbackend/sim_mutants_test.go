//go:build !race

package redisbackend

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onelane/onelane/internal/check"
)

// luaMutants break a line of Lua that keeps a rule. A schedule must notice it.
var luaMutants = []struct {
	line, broken string
	schedule     string
	tuned        bool // with the guard of the first reading, which covers the line else
}{
	{lifeOfP, "text(LIFE)", "S7", false},
	{lifeOfP, "text(3000)", "S6", false},
	{"age = (up - 1) * 1000", "age = up * 1000", "seconds", false},
	{"(saved + 1) * 1000", "saved * 1000", "seconds", false},
	{"return -1", "return 0", "silent", false},
	{copyAnswers, "promise(promised() + 1)", "copy", false},
	{"local wait = abstains(ARGV[4]) -- rule 8", "local wait = 0", "S1", false},
	{clockCheck, "if false then", "S3", false},
	{clockCheck, "if sent - now() > T then", "S3", false},
	{clockCheck, "if now() - sent > T then", "ahead", false},
	{floor, "promised() + 1", "R4", false},
	{floor, "math.max(promised(), sent)", "S7", false},
	{floor, "sent", "S7", false},
	{"if owner then\n  if ARGV[6]", "if false then\n  if ARGV[6]", "foreign", false},
	{againWaits, "local wait = 0", "S13", false},
	{takesAgain, "if true then return {FREE} end", "rolling", false},
	{"if ARGV[3] ~= '1' then", "if false then", "S11", false},
	{"if owner ~= me then -- rule 3", "if false then", "unique", false},
	{promiseCheck, "if false then", "S5", true},
	{"  promise(t)\n", "\n", "accepts", false},
	{acceptsLarger, "return p > t and {FREE} or {YES, text(p)}", "larger", false},
	{ownerReleases, "if not value then", "foreign", false},
}

// ruleText is how a line says which rules it keeps.
var ruleText = regexp.MustCompile(`rules? (\d)(?: and (\d))?`)

func TestMutants_Lua(t *testing.T) {
	t.Parallel()
	used := func(line string) bool {
		for _, m := range luaMutants {
			if strings.Contains(line, m.line) || strings.Contains(m.line, line) {
				return true
			}
		}
		return false
	}
	for file, text := range sourcesOf(t, "lua/quorum*.lua") {
		for _, line := range strings.Split(text, "\n") {
			// A line of its own speaks of the lines after it.
			if line = strings.TrimSpace(line); ruleText.MatchString(line) && !strings.HasPrefix(line, "--") && !used(line) {
				t.Errorf("%s: no mutant breaks %q", file, line)
			}
		}
	}
	for _, m := range luaMutants {
		all := quorumAcquireScript.Src + quorumPromiseScript.Src + quorumExtendScript.Src + releaseScript.Src
		if !strings.Contains(all, m.line) {
			t.Errorf("no script has the line %q", m.line)
			continue
		}
		if bad, _ := playSchedule(t, m.schedule, m.tuned, edits{m.line, m.broken}); bad == "" {
			t.Errorf("%q instead of %q: schedule %s notices nothing", m.broken, m.line, m.schedule)
		}
	}
}

// The search alone must find what breaks the rules often.
func TestMutants_Search(t *testing.T) {
	t.Parallel()
	for _, m := range []struct {
		name   string
		mutant edits
		faults func(*simFaults)
	}{
		{"no abstention", edits{"local wait = abstains(ARGV[4]) -- rule 8", "local wait = 0"}, nil},
		{"no floor", edits{floor, "promised() + 1"}, nil},
		{"one owner per caller", nil, func(f *simFaults) { f.owners = true }},
	} {
		if m.faults == nil && (!check.Long || check.Race) {
			continue // they take longer
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			const most = 400
			l, f := newSimLua(), inside()
			if m.faults != nil {
				m.faults(&f)
			}
			for seed := range uint64(most) {
				run := simulate(t, l, seed, 3, f, func(w *simWorld) { w.mutant = strings.NewReplacer(m.mutant...) })
				if run.bad != "" {
					t.Logf("seed %d: %s", seed, run.bad)
					return
				}
			}
			t.Errorf("not found in %d seeds", most)
		})
	}
}

// goMutants break a line of Go that keeps a rule. A test must fail. Each is compiled, which takes a
// while.
var goMutants = []struct{ file, line, broken, test string }{
	{"quorum_acquire.go", "if err == nil && !time.Now().Before(deadline) { // rule 4", "if false { // rule 4", "TestSchedule/R3"},
	{"quorum_acquire.go", "p.yes() < q.majority() { // rule 3", "p.yes() < 1 { // rule 3", "TestSchedule/S12"},
	{"quorum_acquire.go", "Token: token * tokenBlock", "Token: (token + 1) * tokenBlock", "TestSchedule/S14"},
	{"quorum_vote.go", "o.promise == v.promise }) >= t.quorum.majority() {\n\t\t\treturn v.promise, true", "o.promise == v.promise }) >= 1 {\n\t\t\treturn v.promise, true", "TestSchedule/S12"},
	{"quorum_lease.go", "if !time.Now().Before(g.Deadline) { // rule 6", "if false { // rule 6", "TestSchedule/R1"},
	{"quorum_lease.go", "q.extension(g, ttl, \"\")", "q.extension(g, ttl, \"1\")", "TestSchedule/S11"},
	{"quorum.go", "max(longest, shortestGuard) + clockTolerance", "time.Duration(0)", "TestSchedule/S4"},
}

func TestMutants_Go(t *testing.T) {
	t.Parallel()
	sources := sourcesOf(t, "quorum*.go")
	for _, m := range goMutants {
		if strings.Count(sources[m.file], m.line) != 1 {
			t.Errorf("%s has not one line %q", m.file, m.line)
		}
	}
	if !check.Long || check.Race || t.Failed() {
		return
	}
	for _, m := range goMutants {
		dir := t.TempDir()
		path, err := filepath.Abs(m.file)
		if err != nil {
			t.Fatal(err)
		}
		overlay, _ := json.Marshal(map[string]any{"Replace": map[string]string{path: filepath.Join(dir, m.file)}})
		for name, text := range map[string]string{m.file: strings.Replace(sources[m.file], m.line, m.broken, 1), "overlay.json": string(overlay)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out, err := exec.Command("go", "test", "-vet=off", "-count=1", "-overlay="+filepath.Join(dir, "overlay.json"), "-run", m.test, ".").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "--- FAIL: TestSchedule") {
			t.Errorf("%s: %q instead of %q: %s notices nothing: %v\n%s", m.file, m.broken, m.line, m.test, err, out)
		}
	}
}

// modelText is where the model names the files that keep a rule.
var modelText = regexp.MustCompile(`rule (\d): ((?:\w+\.(?:go|lua)(?:, )?)+)`)

// Each line that keeps a rule has a step in the model, and each step of the model has a line.
func TestModel_NamesItsLines(t *testing.T) {
	t.Parallel()
	kept, named := map[string]bool{}, map[string]bool{}
	for _, pattern := range []string{"quorum*.go", "lua/quorum*.lua"} {
		for file, text := range sourcesOf(t, pattern) {
			for _, line := range strings.Split(text, "\n") {
				if file == "quorum.go" && strings.HasPrefix(line, "//") {
					continue // what the rules are
				}
				for _, m := range ruleText.FindAllStringSubmatch(line, -1) {
					for _, n := range m[1:] {
						if n != "" {
							kept["rule "+n+": "+filepath.Base(file)] = true
						}
					}
				}
			}
		}
	}
	for _, m := range modelText.FindAllStringSubmatch(sourcesOf(t, "model/quorum.pml")["model/quorum.pml"], -1) {
		for _, file := range strings.Split(strings.TrimSuffix(m[2], ", "), ", ") {
			if file != "release.lua" {
				named["rule "+m[1]+": "+file] = true
			}
		}
	}
	for pair := range kept {
		if !named[pair] {
			t.Errorf("quorum.pml has no %q", pair)
		}
	}
	for pair := range named {
		if !kept[pair] {
			t.Errorf("quorum.pml has %q, and that file has no such comment", pair)
		}
	}
}

// sourcesOf reads the package's files that match, without the tests.
func sourcesOf(t *testing.T, pattern string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(files), err)
	}
	sources := make(map[string]string)
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		sources[f] = string(text)
	}
	return sources
}

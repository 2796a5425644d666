package testutil_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logs are the functions that write a line, and instruments those that make a metric.
var (
	logs = []string{"Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext", "Log", "Later",
		"log", "note", "misconfigured", "warn", "warnOnce", "NewQueue"}
	instruments = []string{"seconds", "counter", "Int64Counter", "Int64Histogram", "Int64UpDownCounter", "Float64Histogram",
		"Int64ObservableGauge", "Int64ObservableCounter", "Float64ObservableGauge"}

	verb     = regexp.MustCompile(`%[a-z]`)
	explains = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
	metric   = regexp.MustCompile(`^onelane\.[a-z_.]+$`)
)

// calls returns the texts that a package passes to functions of these names.
func calls(t *testing.T, folder string, functions []string, is func(text string) bool) (texts []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !slices.Contains(functions, nameOf(call.Fun)) {
				return true
			}
			for _, arg := range call.Args {
				if text, ok := literal(arg); ok && is(text) {
					texts = append(texts, text)
				}
			}
			return true
		})
	}
	return texts
}

func nameOf(fn ast.Expr) string {
	switch f := fn.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// docs/operations.md explains each message that the code logs, and each metric, and no others.
func TestOperations_NamesEachMessageAndMetric(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	var explained []string
	for _, found := range explains.FindAllStringSubmatch(string(page), -1) {
		explained = append(explained, found[1])
	}
	var there []string
	for folder, prefix := range map[string]string{
		"core": "core: ", "core/redisbackend": "redisbackend: ", "core/zkbackend": "zkbackend: ", "core/etcdbackend": "etcdbackend: ",
		"core/sqlbackend": "sqlbackend: ",
		"internal/claim":  "idempotency: ",
		"idempotency":     "idempotency: ", "ginlock": "ginlock: ", "grpclock": "grpclock: ", "gormlock": "gormlock: ",
	} {
		messages := calls(t, folder, logs, func(text string) bool { return strings.HasPrefix(text, prefix) })
		if len(messages) == 0 {
			t.Errorf("%s logs nothing: this test tests nothing", folder)
		}
		for _, text := range messages {
			there = append(there, verb.ReplaceAllString(text, "…"))
		}
		there = append(there, calls(t, folder, instruments, metric.MatchString)...)
	}
	there = append(there, calls(t, "gormlock/stock", instruments, metric.MatchString)...) // it logs nothing
	for _, text := range there {
		if !slices.Contains(explained, text) {
			t.Errorf("docs/operations.md does not explain %q; add a row for it", text)
		}
	}
	for i, text := range explained {
		if !slices.Contains(there, text) {
			t.Errorf("docs/operations.md explains %q, which is not in the code", text)
		}
		if slices.Contains(explained[:i], text) {
			t.Errorf("docs/operations.md explains %q twice", text)
		}
	}
}

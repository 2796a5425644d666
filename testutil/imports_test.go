package testutil_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/onelane/onelane"

// mayImport says what the packages of a folder may import besides the standard library and each
// other. It names folders of this module that have a rule, and paths with what is below them. The
// longest folder that holds a package is its rule.
var mayImport = map[string][]string{
	"core": {"internal", "go.opentelemetry.io/otel"},
	"core/redisbackend": {"core", "internal", "github.com/go-redsync/redsync/v4/redis", "github.com/redis/go-redis/v9",
		"go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/metric"},
	"core/zkbackend":  {"core", "internal", "github.com/go-zookeeper/zk"},
	"core/sqlbackend": {"core", "internal", "github.com/jackc/pgx/v5"},
	"core/onelanectl": {"core", "idempotency", "core/redisbackend", "core/etcdbackend", "core/zkbackend", "core/sqlbackend", "internal", "internal/claim",
		"github.com/redis/go-redis/v9", "go.etcd.io/etcd/client/v3", "go.uber.org/zap", "github.com/go-zookeeper/zk",
		"github.com/jackc/pgx/v5", "github.com/go-sql-driver/mysql", "github.com/glebarez/go-sqlite"},
	"core/etcdbackend": {"core", "internal", "go.etcd.io/etcd/api/v3", "go.etcd.io/etcd/client/v3",
		"google.golang.org/grpc/codes", "google.golang.org/grpc/connectivity", "google.golang.org/grpc/metadata",
		"google.golang.org/grpc/status"},
	"internal":          {"core"},
	"internal/gormkeys": {"internal", "gorm.io/gorm"},
	"internal/claim":    {"core", "internal", "google.golang.org/protobuf", "go.opentelemetry.io/otel"},
	"idempotency":       {"core", "internal", "internal/claim"},
	"ginlock":           {"core", "idempotency", "internal", "internal/claim", "github.com/gin-gonic/gin"},
	"grpclock": {"core", "idempotency", "internal", "internal/claim", "google.golang.org/grpc", "google.golang.org/protobuf",
		"google.golang.org/genproto/googleapis/rpc"},
	"gormlock":            {"core", "internal", "internal/claim", "internal/gormkeys", "gorm.io/gorm", "go.opentelemetry.io/otel"},
	"gormlock/optimistic": {"gormlock", "internal", "internal/gormkeys", "gorm.io/gorm"},
}

// Packages below an allowed path that are not meant.
var neverImport = []string{"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters",
	"google.golang.org/grpc/reflection", "google.golang.org/grpc/xds"}

// These are not shipped: they may import anything, and nothing shipped may import them.
var notShipped = []string{"testutil", "examples", "internal/check", "internal/pausetest", "internal/routertest", "internal/sqlrelay"}

var topLevel = []string{"go.mod", "go.sum", "core", "ginlock", "grpclock", "gormlock", "idempotency", "internal", "examples",
	"testutil", "docs", "README.md", "README.zh-CN.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}

// imports are the imports of each package, by its folder relative to the module, with / in it.
type imports map[string][]string

// violations returns a sentence for every import that the rules do not allow.
func violations(packages imports) []string {
	var found []string
	for folder, paths := range packages {
		top, _, _ := strings.Cut(folder, "/")
		rule := ruleOf(folder)
		for _, path := range paths {
			switch {
			case isStandard(path), slices.ContainsFunc(notShipped, func(n string) bool { return within(folder, n) }):
			case rule == "" && !within(path, module+"/"+top):
				found = append(found, fmt.Sprintf("%s: no rule says what it may import, and it imports %s", folder, path))
			case rule != "" && !allowed(rule, path):
				found = append(found, fmt.Sprintf("%s imports %s", folder, path))
			}
		}
	}
	slices.Sort(found)
	return found
}

// ruleOf returns the longest folder of mayImport that holds the folder, or "".
func ruleOf(folder string) (rule string) {
	for f := range mayImport {
		if within(folder, f) && len(f) > len(rule) {
			rule = f
		}
	}
	return rule
}

// allowed reports whether the packages under a rule may import path.
func allowed(rule, path string) bool {
	if own, ok := strings.CutPrefix(path, module+"/"); ok {
		target := ruleOf(own)
		return target == rule || target != "" && slices.Contains(mayImport[rule], target)
	}
	below := func(p string) bool { return within(path, p) }
	return slices.ContainsFunc(mayImport[rule], below) && !slices.ContainsFunc(neverImport, below)
}

func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func within(path, parent string) bool { return path == parent || strings.HasPrefix(path, parent+"/") }

// readImports reads the imports of all packages below root, those of other systems too, and not those of tests and nested modules.
func readImports(root string) (imports, error) {
	packages := imports{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			hidden := strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata"
			if path != root && (err == nil || hidden) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		folder = filepath.ToSlash(folder)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if !slices.Contains(packages[folder], imported) {
				packages[folder] = append(packages[folder], imported)
			}
		}
		return nil
	})
	return packages, err
}

func TestDependencyRules(t *testing.T) {
	packages, err := readImports("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range slices.Sorted(maps.Keys(mayImport)) {
		if folder != "internal" && len(packages[folder]) == 0 {
			t.Errorf("the package %s was not found: this test looks at %d packages and misses what it is for", folder, len(packages))
		}
	}
	for _, violation := range violations(packages) {
		t.Error(violation)
	}
}

func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if !slices.Contains(names, "go.mod") {
		t.Fatalf("this is not the top level: %v", names)
	}
	for _, name := range strangers(names) {
		t.Errorf("%s is new at the top level: move it into a folder there is, or give the reason for it in this test", name)
	}
}

// strangers are the names that do not belong to the top level. Hidden files of git and editors, and
// files that .gitignore names, do not count.
func strangers(names []string) []string {
	var found []string
	for _, name := range names {
		ignored := slices.Contains([]string{".test", ".out", ".prof"}, filepath.Ext(name))
		if !strings.HasPrefix(name, ".") && !ignored && !slices.Contains(topLevel, name) {
			found = append(found, name)
		}
	}
	return found
}

func TestTheRulesFindEachViolation(t *testing.T) {
	const redsync = "github.com/go-redsync/redsync/v4"
	for _, c := range []struct {
		folder, path string
		allowed      bool
	}{
		{"core", "context", true},
		{"core", "go.opentelemetry.io/otel/metric", true},
		{"core", module + "/core/internal/x", true},
		{"core", module + "/internal/ownertext", true},
		{"core", redsync + "/redis", false},
		{"core", "github.com/redis/go-redis/v9", false},
		{"core", module + "/core/redisbackend", false},
		{"core/redisbackend", module + "/core", true},
		{"core/redisbackend", module + "/internal/ownertext", true},
		{"core/redisbackend", redsync + "/redis", true},
		{"core/redisbackend", redsync + "/redis/goredis/v9", true},
		{"core/redisbackend", "github.com/redis/go-redis/v9", true},
		{"core/redisbackend", "go.opentelemetry.io/otel/metric", true},
		{"core/redisbackend", redsync, false},
		{"core/redisbackend", "github.com/redis/rueidis", false},
		{"core/redisbackend", "go.opentelemetry.io/otel/trace", false},
		{"core/redisbackend", module + "/core/onelanectl", false},
		{"core/redisbackend", module + "/idempotency", false},
		{"core/sqlbackend", "database/sql", true},
		{"core/sqlbackend", module + "/internal/sqltable", true},
		{"core/sqlbackend", "gorm.io/gorm", false},
		{"core/sqlbackend", "github.com/go-sql-driver/mysql", false},
		{"core/sqlbackend", module + "/gormlock", false},
		{"core/onelanectl", module + "/core/redisbackend", true},
		{"core/onelanectl", module + "/gormlock", false},
		{"core/newbackend", "github.com/redis/go-redis/v9", false},
		{"internal/keytemplate", module + "/core", true},
		{"internal/keytemplate", module + "/internal/ownertext", true},
		{"internal/keytemplate", module + "/idempotency", false},
		{"internal/keytemplate", module + "/core/redisbackend", false},
		{"internal/keytemplate", "gorm.io/gorm", false},
		{"core", "go.opentelemetry.io/otel/sdk/metric", false},
		{"core", "go.opentelemetry.io/otelfake", false},
		{"core", "github.com/gin-gonic/gin", false},
		{"core", module + "/idempotency", false},
		{"core/internal/x", module + "/gormlock", false},
		{"idempotency", module + "/core", true},
		{"idempotency", "google.golang.org/protobuf/proto", false},
		{"idempotency", module + "/ginlock", false},
		{"idempotency", "github.com/redis/go-redis/v9", false},
		{"ginlock", "github.com/gin-gonic/gin/render", true},
		{"ginlock", module + "/idempotency", true},
		{"ginlock", module + "/internal/keytemplate", true},
		{"ginlock", module + "/core/redisbackend", false},
		{"ginlock", module + "/grpclock", false},
		{"ginlock", module + "/gormlock", false},
		{"gormlock/optimistic", module + "/gormlock", true},
		{"gormlock", module + "/gormlock/optimistic", false},
		{"grpclock", "google.golang.org/grpc/codes", true},
		{"grpclock", "google.golang.org/genproto/googleapis/rpc/errdetails", true},
		{"grpclock", module + "/grpclock/lockpb", true},
		{"grpclock", "google.golang.org/grpc/reflection", false},
		{"grpclock", "google.golang.org/genproto/googleapis/api/annotations", false},
		{"grpclock", "github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector", false},
		{"grpclock", module + "/ginlock", false},
		{"grpclock", "gorm.io/gorm", false},
		{"gormlock", "gorm.io/gorm/clause", true},
		{"gormlock", "gorm.io/driver/mysql", false},
		{"gormlock", "github.com/glebarez/sqlite", false},
		{"gormlock", module + "/grpclock", false},
		{"gormlock", module + "/core/redisbackend", false},
		{"core", module + "/testutil", false},
		{"ginlock", module + "/examples/grab", false},
		{"gormlock", module + "/testutil/internal/server", false},
		{"testutil", module + "/core", true},
		{"examples/seckill", "gorm.io/driver/mysql", true},
		{"util", module + "/core", false},
		{"util", "strings", true}, // TestTopLevel finds the folder
	} {
		found := violations(imports{c.folder: {"fmt", c.path}})
		if (len(found) == 0) != c.allowed {
			t.Errorf("%s imports %s: allowed is %v, found %q", c.folder, c.path, c.allowed, found)
		}
		if !c.allowed && len(found) == 1 && (!strings.Contains(found[0], c.folder) || !strings.Contains(found[0], c.path)) {
			t.Errorf("%q names not both %s and %s", found[0], c.folder, c.path)
		}
	}
	if got, want := strangers([]string{".git", ".ci", "core", "go.mod", "pkg", "x.test", "main.go"}), []string{"pkg", "main.go"}; !slices.Equal(got, want) {
		t.Errorf("strangers %v, want %v", got, want)
	}
}

func TestImportsAreRead(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"a/a.go":               "package a\nimport \"fmt\"\n",
		"a/b_windows.go":       "package a\nimport (\n\t\"fmt\"\n\t_ \"x.org/windows\"\n)\n",
		"a/a_test.go":          "package a\nimport \"x.org/test\"\n",
		"a/testdata/t.go":      "package t\nimport \"x.org/testdata\"\n",
		"a/nested/go.mod":      "module nested\n",
		"a/nested/n.go":        "package n\nimport \"x.org/nested\"\n",
		"a/internal/deep/d.go": "package deep\nimport \"x.org/deep\"\n",
	} {
		file := filepath.Join(root, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readImports(root)
	if err != nil {
		t.Fatal(err)
	}
	want := "map[a:[fmt x.org/windows] a/internal/deep:[x.org/deep]]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

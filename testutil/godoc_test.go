package testutil_test

import (
	"cmp"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// documented are the packages that users import.
var documented = []string{"core", "idempotency", "ginlock", "grpclock", "gormlock", "testutil"}

// ownExample are the results of functions that users begin with. Each such function has its own
// example, as has each that returns an error. The others, options among them, are used in one.
var ownExample = []string{
	"Backend", "core.Backend", "core.Opener", "*Claims", "gin.HandlerFunc", "grpc.UnaryServerInterceptor",
	"grpc.StreamServerInterceptor", "grpc.UnaryClientInterceptor", "gorm.Plugin", "func(*gorm.DB) *gorm.DB", "error",
}

// godoc is a package as go doc shows it.
type godoc struct {
	*doc.Package
	used  map[string]bool // in an example that runs: "Join" of core.Join, and ".Release" of any method or field
	tests []string        // the files of its tests, without indentation
}

func readGodoc(t *testing.T, folder string) godoc {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	files := make([]*ast.File, len(paths))
	var tests []string
	for i, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			tests = append(tests, undented(string(source)))
		}
		if files[i], err = parser.ParseFile(fset, path, nil, parser.ParseComments); err != nil {
			t.Fatal(err)
		}
	}
	p, err := doc.NewFromFiles(fset, files, module+"/"+folder)
	if err != nil {
		t.Fatal(err)
	}
	return newGodoc(p, files, tests)
}

func newGodoc(p *doc.Package, files []*ast.File, tests []string) godoc {
	g := godoc{Package: p, used: make(map[string]bool), tests: tests}
	for _, file := range files {
		for _, e := range doc.Examples(file) {
			if !runs(e) {
				continue
			}
			ast.Inspect(e.Code, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == p.Name {
						g.used[s.Sel.Name] = true
					} else {
						g.used["."+s.Sel.Name] = true
					}
				}
				return true
			})
		}
	}
	return g
}

// runs reports whether go test runs an example, and compares what it prints.
func runs(e *doc.Example) bool { return e.Output != "" }

// withoutExamples are the names of a package that no example shows.
func (g godoc) withoutExamples() (missing []string) {
	one := func(name string, f *doc.Func) {
		switch {
		case calledByTests(f.Decl.Type):
			if _, code, found := strings.Cut(f.Doc, "\n\n\t"); !found || !slices.ContainsFunc(g.tests, func(test string) bool { return strings.Contains(test, undented(code)) }) {
				missing = append(missing, name+" needs code in its comment that is in a test: an example has no test to call it with")
			}
		case needsItsOwn(f.Decl.Type) && f.Recv == "" && !slices.ContainsFunc(f.Examples, runs):
			missing = append(missing, name+" needs an example of its own")
		case f.Recv == "" && !g.used[f.Name], f.Recv != "" && !g.used["."+f.Name]:
			missing = append(missing, name+" is used in no example")
		}
	}
	for _, f := range g.Funcs {
		one(f.Name, f)
	}
	for _, typ := range g.Types {
		for _, f := range typ.Funcs {
			one(f.Name, f)
		}
		for _, f := range typ.Methods {
			if !calledByOthers(typ, f) && !onlyInTests(g.Package, typ) {
				one(typ.Name+"."+f.Name, f)
			}
		}
	}
	return missing
}

// needsItsOwn reports whether a function returns something that a user begins with, or an error.
func needsItsOwn(f *ast.FuncType) bool {
	return f.Results != nil && slices.ContainsFunc(f.Results.List, func(r *ast.Field) bool {
		return slices.Contains(ownExample, types.ExprString(r.Type))
	})
}

// calledByTests reports whether a function takes a test, which an example does not have.
func calledByTests(f *ast.FuncType) bool {
	return slices.ContainsFunc(f.Params.List, func(p *ast.Field) bool { return strings.Contains(types.ExprString(p.Type), "testing.T") })
}

// onlyInTests reports whether only functions that take a test return a type: their comments show
// it.
func onlyInTests(p *doc.Package, typ *doc.Type) bool {
	return p.Name == "testutil" && (len(typ.Funcs) > 0 && calledByTests(typ.Funcs[0].Decl.Type) || typ.Name == "Move")
}

// calledByOthers reports whether errors, fmt or GORM call a method, and not the user.
func calledByOthers(typ *doc.Type, f *doc.Func) bool {
	if strings.HasSuffix(typ.Name, "Error") {
		return true
	}
	return f.Name == "String" || strings.HasPrefix(f.Doc, f.Name+" implements ")
}

// Each function that a user calls is shown in an example that runs, and an entry point in its own
// example.
func TestGodoc_EveryEntryPointHasAnExample(t *testing.T) {
	for _, folder := range documented {
		t.Run(folder, func(t *testing.T) {
			g := readGodoc(t, folder)
			for _, name := range g.withoutExamples() {
				t.Errorf("%s.%s", folder, name)
			}
		})
	}
}

// undocumented are the exported names of a package whose comment is missing or does not begin with the name. The names of a group may
// share a comment; a field may have its own behind it.
func (g godoc) undocumented() (missing []string) {
	one := func(name, doc string) {
		if _, last, found := strings.Cut(name, "."); !strings.HasPrefix(doc, name+" ") && !(found && strings.HasPrefix(doc, last+" ")) {
			missing = append(missing, name)
		}
	}
	values := func(values []*doc.Value) {
		for _, v := range values {
			for _, spec := range v.Decl.Specs {
				spec := spec.(*ast.ValueSpec)
				for _, name := range spec.Names {
					if ast.IsExported(name.Name) && (spec.Doc != nil || v.Doc == "" || len(v.Decl.Specs) == 1) {
						one(name.Name, cmp.Or(spec.Doc.Text(), v.Doc))
					}
				}
			}
		}
	}
	funcs := func(typ string, funcs []*doc.Func) {
		for _, f := range funcs {
			one(typ+f.Name, f.Doc)
		}
	}
	values(g.Consts)
	values(g.Vars)
	funcs("", g.Funcs)
	for _, typ := range g.Types {
		one(typ.Name, typ.Doc)
		values(typ.Consts)
		values(typ.Vars)
		funcs("", typ.Funcs)
		funcs(typ.Name+".", typ.Methods)
		missing = append(missing, fields(typ)...)
	}
	return missing
}

// fields are the exported fields, and methods of an interface, of a type that say nothing about themselves.
func fields(typ *doc.Type) (missing []string) {
	var list *ast.FieldList
	switch t := typ.Decl.Specs[0].(*ast.TypeSpec).Type.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	default:
		return nil
	}
	for i, f := range list.List {
		for _, name := range f.Names {
			shared := i > 0 && list.List[i-1].Doc != nil && f.Doc == nil && f.Comment == nil // said with the one before
			if ast.IsExported(name.Name) && f.Doc == nil && f.Comment == nil && !shared {
				missing = append(missing, typ.Name+"."+name.Name)
			}
		}
	}
	return missing
}

// maxDocLines is how long the comment of a package may be; docs/ has the rest.
const maxDocLines = 40

// The comment of a package is short.
func TestGodoc_PackageDocsAreShort(t *testing.T) {
	for _, folder := range append([]string{"core/redisbackend"}, documented...) {
		if n := strings.Count(readGodoc(t, folder).Doc, "\n"); n == 0 || n > maxDocLines {
			t.Errorf("the comment of package %s has %d lines, and may have %d", folder, n, maxDocLines)
		}
	}
}

// Each exported name has a comment that begins with it.
func TestGodoc_EveryNameIsDocumented(t *testing.T) {
	for _, folder := range documented {
		g := readGodoc(t, folder)
		if g.Doc == "" {
			t.Errorf("%s has no comment of the package", folder)
		}
		for _, name := range g.undocumented() {
			t.Errorf("%s.%s needs a comment that begins with its name", folder, name)
		}
	}
}

// The tests above find what they are for.
func TestGodoc_FindsWhatIsMissing(t *testing.T) {
	const source = `package shop

// Shop is a shop.
type Shop struct{ Name string }
func Open() error { return nil }
// Shut shuts.
func Shut() error { return nil }
// It says how many.
func Count() int { return 0 }
// Tag tags.
func Tag() Option { return nil }
// Sell sells.
func (s Shop) Sell() {}
// Buy buys.
func (s Shop) Buy() {}
// In starts a shop for a test.
//
//	shop.In(t)
func In(t testing.TB) {}
// Option is an option.
type Option interface { set() }
`
	const tests = `package shop_test

func Example() { shop.Count(); var s shop.Shop; s.Sell()
	// Output: 1
}
func ExampleOpen() { shop.Open(); shop.Tag()
	// Output: 2
}
func ExampleShut() { shop.Tag() }
func ExampleShop_Buy() { shop.Open() }
`
	fset := token.NewFileSet()
	var files []*ast.File
	for name, text := range map[string]string{"shop.go": source, "example_test.go": tests} {
		file, err := parser.ParseFile(fset, name, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	p, err := doc.NewFromFiles(fset, files, module+"/shop")
	if err != nil {
		t.Fatal(err)
	}
	g := newGodoc(p, files, []string{undented(tests)})
	got := g.withoutExamples()
	want := []string{"In needs code in its comment that is in a test: an example has no test to call it with",
		"Shut needs an example of its own", "Shop.Buy is used in no example"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := g.undocumented(), []string{"Count", "Open", "Shop.Name"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

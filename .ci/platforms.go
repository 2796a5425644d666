// Platforms checks that files with build constraints fit together on other systems. Types are checked
// from source: to compile the standard library for each system takes many times longer. From the
// folder of the module: go run .ci/platforms.go
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

func main() {
	for _, goos := range []string{"darwin", "windows"} {
		n, err := check(goos, "./core/redisbackend", "./testutil/internal/server", "./testutil/servers")
		if err != nil {
			fmt.Fprintf(os.Stderr, "GOOS=%s: %v\n", goos, err)
			os.Exit(1)
		}
		fmt.Printf("GOOS=%s: the types of %d packages fit\n", goos, n)
	}
}

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string // of vendored packages
	DepOnly         bool
}

// check checks packages and all that they import, and returns how many these are.
func check(goos string, packages ...string) (int, error) {
	list := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap,DepOnly"}, packages...)...)
	list.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return 0, err
	}
	checked := map[string]*types.Package{"unsafe": types.Unsafe}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return len(checked), nil
		case err != nil:
			return 0, err
		case p.ImportPath == "unsafe":
			continue
		}
		if checked[p.ImportPath], err = p.types(checked); err != nil {
			return 0, fmt.Errorf("%s: %w", p.ImportPath, err)
		}
	}
}

// types checks p. Its imports were checked before.
func (p *listed) types(checked map[string]*types.Package) (*types.Package, error) {
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	config := types.Config{IgnoreFuncBodies: p.DepOnly, Sizes: types.SizesFor("gc", runtime.GOARCH), Importer: importer(func(path string) (*types.Package, error) {
		if vendored := p.ImportMap[path]; vendored != "" {
			path = vendored
		}
		if checked[path] == nil {
			return nil, fmt.Errorf("%s was not checked", path)
		}
		return checked[path], nil
	})}
	return config.Check(p.ImportPath, set, files, nil)
}

type importer func(path string) (*types.Package, error)

// Import implements [types.Importer].
func (i importer) Import(path string) (*types.Package, error) { return i(path) }

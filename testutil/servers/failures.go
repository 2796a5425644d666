package main

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
)

// mostFailures is how many lines of failures are repeated.
const mostFailures = 60

// failures passes the output of go test on, and keeps the lines that say what failed: those of
// other packages follow, and hide it.
type failures struct {
	io.Writer
	partial []byte
	inside  bool // the lines of a test that failed
	lines   [][]byte
}

var (
	failed = regexp.MustCompile(`^ *--- FAIL: |^FAIL\t|^panic: `)
	ended  = regexp.MustCompile(`^\S|^ *(--- (PASS|SKIP)|=== )`)
)

func isGoTest(args []string) bool {
	return len(args) > 1 && filepath.Base(args[0]) == "go" && args[1] == "test"
}

func (f *failures) Write(p []byte) (int, error) {
	f.partial = append(f.partial, p...)
	for {
		line, rest, whole := bytes.Cut(f.partial, []byte("\n"))
		if !whole {
			break
		}
		f.inside = failed.Match(line) || f.inside && !ended.Match(line)
		if f.inside && len(f.lines) <= mostFailures {
			f.lines = append(f.lines, bytes.Clone(line))
		}
		f.partial = rest
	}
	return f.Writer.Write(p)
}

// repeat writes the lines that say what failed.
func (f *failures) repeat() {
	if len(f.lines) == 0 {
		return
	}
	fmt.Fprintln(f.Writer, "\nWhat failed:")
	for _, line := range f.lines[:min(len(f.lines), mostFailures)] {
		fmt.Fprintf(f.Writer, "%s\n", line)
	}
	if len(f.lines) > mostFailures {
		fmt.Fprintln(f.Writer, "and more, above")
	}
}

package main

import (
	"strings"
	"testing"
)

func TestFailures_Repeated(t *testing.T) {
	const before = "ok  \ta\t1s\nnoise\n--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/x (0.00s)\n" +
		"        a_test.go:1: boom\n          more of it\n    --- PASS: TestA/y (0.00s)\n        a_test.go:2: fine\n" +
		"redis: 2026/01/02 a log line\nFAIL\nFAIL\tb\t2s\nok  \tc\t1s\n"
	const want = "--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/x (0.00s)\n        a_test.go:1: boom\n" +
		"          more of it\nFAIL\tb\t2s\n"
	for _, size := range []int{1, 7, len(before)} {
		var out strings.Builder
		f := &failures{Writer: &out}
		for text := before; text != ""; text = text[min(size, len(text)):] {
			if _, err := f.Write([]byte(text[:min(size, len(text))])); err != nil {
				t.Fatal(err)
			}
		}
		if out.String() != before {
			t.Fatalf("in pieces of %d it passed on %q", size, out.String())
		}
		f.repeat()
		if got := strings.TrimPrefix(out.String(), before); got != "\nWhat failed:\n"+want {
			t.Errorf("in pieces of %d it repeats %q, want %q", size, got, want)
		}
	}
}

func TestFailures_NoneOrMany(t *testing.T) {
	var out strings.Builder
	f := &failures{Writer: &out}
	f.repeat()
	if out.Len() > 0 {
		t.Errorf("without a failure it says %q", out.String())
	}
	for range 10 * mostFailures {
		_, _ = f.Write([]byte("--- FAIL: TestA (0.00s)\n"))
	}
	out.Reset()
	f.repeat()
	if n := strings.Count(out.String(), "\n"); n > mostFailures+3 || !strings.Contains(out.String(), "and more") {
		t.Errorf("%d lines: %q", n, out.String())
	}
}

func TestIsGoTest(t *testing.T) {
	for command, want := range map[string]bool{
		"go test ./...": true, "/usr/local/go/bin/go test": true, "go vet ./...": false, "go": false, "sh -c test": false,
	} {
		if got := isGoTest(strings.Fields(command)); got != want {
			t.Errorf("%s: %v", command, got)
		}
	}
}

func TestMorePackages(t *testing.T) {
	for processors, want := range map[int]string{1: "-p=2", 2: "-p=3", 8: "-p=12"} {
		if got := strings.TrimSpace(morePackages("", processors)); got != want {
			t.Errorf("with %d processors: %q instead of %q", processors, got, want)
		}
	}
	// The last one counts, as go test has it.
	if got := morePackages("-buildvcs=false -p=1", 2); !strings.HasSuffix(got, "-buildvcs=false -p=1") {
		t.Errorf("the user's flags do not win: %q", got)
	}
}

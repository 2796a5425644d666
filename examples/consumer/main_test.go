package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(run(context.Background(), nil, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestKills(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-kills", "12"}, &out, &errs); code != 0 || strings.Count(out.String(), ", 0 of them more than once") != 2 {
		t.Errorf("exit status %d: %s%s", code, &out, &errs)
	}
}

// Without the kit the same kills charge people twice: the play would see it.
func TestKills_Unprotected(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-kills", "8", "-unprotected"}, &out, &errs); code != 1 {
		t.Errorf("exit status %d: %s%s", code, &out, &errs)
	}
}

func TestBadInput(t *testing.T) {
	for _, args := range []string{"-kills 1", "-kills 10001", "-nonsense", "surplus"} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("%s: exit status %d, %q", args, code, errs.String())
		}
	}
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(run(context.Background(), nil, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// twice is what a play says of a customer who was charged more than once.
var twice = regexp.MustCompile(`charged ([2-9]|\d\d+) time`)

// The play has short leases, whose ends a busy machine may see too early or too late. Nobody is
// charged twice for that.
func TestPlay(t *testing.T) {
	missing := ""
	for range 3 {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"-customers", "20"}, &out, &errs)
		if said := out.String(); !strings.Contains(said, "charged: 20 customers, 0 of them more than once") || twice.MatchString(said) {
			t.Fatalf("exit status %d: %s%s", code, &out, &errs)
		}
		if missing = notSaid(code, out.String()); missing == "" {
			return
		}
		missing += "\n" + out.String() + errs.String()
	}
	t.Error(missing)
}

// notSaid returns what is wrong with a play that ended with code.
func notSaid(code int, said string) string {
	if code != 0 {
		return fmt.Sprintf("exit status %d", code)
	}
	for _, want := range []string{
		"422 idempotency_key_reused",
		"no answer",
		"the client sees 409",
		"idempotency_outcome_unknown",
		"the client sees 201",
		"the customer was charged 1 time(s)",
		"OK: nobody",
	} {
		if !strings.Contains(said, want) {
			return fmt.Sprintf("it does not say %q", want)
		}
	}
	return ""
}

func TestBadInput(t *testing.T) {
	for _, args := range []string{"-customers 0", "-customers 1001", "-nonsense", "surplus"} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("%s: exit status %d, %q", args, code, errs.String())
		}
	}
}

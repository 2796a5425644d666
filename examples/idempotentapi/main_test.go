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

func TestPlay(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-customers", "20"}, &out, &errs); code != 0 {
		t.Fatalf("exit status %d: %s%s", code, &out, &errs)
	}
	said := out.String()
	for _, want := range []string{
		"charged: 20 customers, 0 of them more than once",
		"422 idempotency_key_reused",
		"no answer",
		"the client sees 409",
		"idempotency_outcome_unknown",
		"the client sees 201",
		"the customer was charged 1 time(s)",
		"OK: nobody",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
}

func TestBadInput(t *testing.T) {
	for _, args := range []string{"-customers 0", "-customers 1001", "-nonsense", "surplus"} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("%s: exit status %d, %q", args, code, errs.String())
		}
	}
}

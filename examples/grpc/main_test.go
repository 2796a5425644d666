package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/onelane/onelane/testutil"
)

func runIt(t *testing.T, want int, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), args, &out, &errs); code != want {
		t.Fatalf("exit status %d, want %d: %s%s", code, want, out.String(), errs.String())
	}
	return out.String() + errs.String()
}

// served runs it until each call got an answer in time, which a busy machine may not give at once.
// The book must be right in any case.
func served(t *testing.T, more func() []string) string {
	t.Helper()
	var out bytes.Buffer
	for range 5 {
		out.Reset()
		args := append([]string{"-customers", "40", "-orders", "20"}, more()...)
		if run(t.Context(), args, &out, &out) == 0 {
			return out.String()
		}
		late := strings.Contains(out.String(), `"lock_unavailable"`) || strings.Contains(out.String(), "code = Unavailable")
		if !late ||
			!strings.Contains(out.String(), "0 of them with two or more, 0 orders given away twice") {
			break
		}
	}
	t.Fatal(out.String())
	return ""
}

func TestBothTransports_Embedded(t *testing.T) {
	if out := served(t, func() []string { return nil }); !strings.Contains(out, "OK: ") {
		t.Error(out)
	}
}

func TestBothTransports_RealRedis(t *testing.T) {
	served(t, func() []string { return []string{"-redis", testutil.Redis(t).Addr()} })
}

// Without the kit's lines it must break, or the checks would prove nothing. By chance, no two
// drivers may be at the same order at once: the clients run again until they are.
func TestUnguardedBreaks(t *testing.T) {
	out := ""
	for range 20 {
		out = runIt(t, 1, "-unguarded", "-customers", "40", "-orders", "20")
		if !strings.Contains(out, "BROKEN") || strings.Contains(out, " 0 of them with two or more") {
			break
		}
		if !strings.Contains(out, " 0 orders given away twice") {
			return
		}
	}
	t.Error(out)
}

func TestBadInput(t *testing.T) {
	for args, says := range map[string]string{
		"-customers 0":          "-customers must be from 1",
		"-customers 1":          "-orders from 0 to that",
		"surplus":               "no other arguments",
		"-nonsense":             "-nonsense",
		"-redis 127.0.0.1:1 -h": "-redis",
		"-redis 127.0.0.1:1":    "the Redis at 127.0.0.1:1 does not answer",
	} {
		want := 2
		if strings.HasSuffix(args, "-h") {
			want = 0
		}
		if out := runIt(t, want, strings.Fields(args)...); !strings.Contains(out, says) {
			t.Errorf("%s: %q does not say %q", args, out, says)
		}
	}
}

package main

import (
	"bytes"
	"strings"
	"testing"
)

func runGrab(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, &out, &errs)
	return code, out.String() + errs.String()
}

func TestGrab_OneCourierPerOrder(t *testing.T) {
	for try := 1; ; try++ { // a machine that stands still may give a courier no answer in time
		code, said := runGrab(t, "-orders", "15", "-couriers", "20")
		if code == 0 && strings.Contains(said, "15 orders went to one courier, 0 to several, 0 to none") {
			return
		}
		if try == 5 || !strings.Contains(said, ", 0 to several") || !strings.Contains(said, "unavailable") {
			t.Fatalf("exit status %d: %s", code, said)
		}
	}
}

// Naive code fails by chance: on a busy machine its couriers may not meet.
func TestGrab_UnguardedGoesToSeveral(t *testing.T) {
	var code int
	var said string
	for range 20 {
		code, said = runGrab(t, "-orders", "15", "-couriers", "20", "-unguarded")
		if code == 1 && !strings.Contains(said, " 0 to several") && strings.Contains(said, "BROKEN") {
			return
		}
	}
	t.Errorf("naive code did not fail: exit status %d: %s", code, said)
}

func TestGrab_BadInput(t *testing.T) {
	for _, args := range []string{"-orders 0", "-couriers 201", "-nonsense", "surplus"} {
		if code, said := runGrab(t, strings.Fields(args)...); code != 2 || said == "" {
			t.Errorf("%s: exit status %d, %q", args, code, said)
		}
	}
}

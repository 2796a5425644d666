package redisbackend_test

import (
	"crypto/fips140"
	"os"
	"os/exec"
	"testing"

	"github.com/onelane/onelane/testutil"
)

const strictFIPS = "fips140=only"

// SHA-1 names scripts and values, and protects nothing. So strict FIPS mode, in which SHA-1 panics,
// is no reason not to work. The test runs itself in that mode.
func TestScripts_FIPS(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	if !node.Real() {
		return // a miniredis uses SHA-1
	}
	if os.Getenv("GODEBUG") == strictFIPS {
		if !fips140.Enforced() {
			t.Fatal("this is not FIPS mode")
		}
		ok(t, "every verb", everyVerb(t, locker(t, one(node.Client())), "k"))
		return
	}
	self, err := os.Executable()
	ok(t, "Executable", err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestScripts_FIPS$", "-test.v")
	cmd.Env = append(os.Environ(), "GODEBUG="+strictFIPS)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("with GODEBUG=%s: %v\n%s", strictFIPS, err, out)
	}
}

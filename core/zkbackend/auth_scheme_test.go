package zkbackend_test

import (
	"os"
	"strings"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
)

// Without its scheme WithAuth would do nothing: the nodes would be open to everybody. A variable of
// the environment that is not set does that.
func TestWithAuth_NoScheme(t *testing.T) {
	t.Parallel()
	for _, credentials := range []string{"", "me:secret"} {
		l, err := core.New(zkbackend.New([]string{"localhost:2181"}, zkbackend.WithAuth(os.Getenv("NOT_SET"), credentials)))
		if err == nil {
			ok(t, "Close", l.Close())
		}
		if err == nil || !strings.Contains(err.Error(), "zkbackend: WithAuth") {
			t.Errorf(`WithAuth("", %q): %v, want an error that says WithAuth`, credentials, err)
		}
	}
}

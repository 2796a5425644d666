package core_test

import (
	"strings"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// etcd refuses an owner that is not UTF-8 with each Acquire, as if the key were wrong. A text that was
// cut to its length has half a character at its end.
func TestInstanceAndTag_AreUTF8(t *testing.T) {
	t.Parallel()
	cut := strings.Repeat("订", 86)[:256]
	for says, o := range map[string]core.Option{"instance": core.WithInstance("shop-\xff"), "WithTag": core.WithTag(cut)} {
		if _, err := core.New(testutil.Memory(), o); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("New with a wrong %s: %v", says, err)
		}
	}
	l := locker(t, testutil.Memory())
	if _, err := l.TryAcquire(t.Context(), "k", core.WithTag(cut)); err == nil || !strings.Contains(err.Error(), "WithTag") {
		t.Errorf("TryAcquire with half a character: %v", err)
	}
}

package zkbackend_test

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
)

// A service in another language holds a key "for ever". In nanoseconds that is less than nothing, and
// nobody may take it for a lease that has ended.
func TestNode_LastsForEver(t *testing.T) {
	t.Parallel()
	node := shared(t)
	b := open(t, at(t, node.Addr()))
	g, err := b.Acquire(t.Context(), request("k", time.Minute))
	ok(t, "Acquire", err)
	path := keyNodes(t, node.Addr(), rootOf(t))[0]
	c := client(t, node.Addr())
	theirs := "onelane1 held 9223372036854775807 0 0 0 0\n" + g.Owner
	_, err = c.Set(path, []byte(theirs), -1)
	ok(t, "Set", err)
	_, err = b.Acquire(t.Context(), request("k", time.Minute))
	want(t, "Acquire", err, core.ErrInvalidKey)
	ok(t, "Sweep", zkbackend.Sweep(t.Context(), b))
	text, _, err := c.Get(path)
	ok(t, "Get", err)
	if string(text) != theirs {
		t.Errorf("the node's text is now %q", text)
	}
}

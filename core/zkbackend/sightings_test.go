package zkbackend_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
)

// A process looks at more keys than it can remember. It remembers those that it waits for, so that
// it gets the key of a holder that died.
func TestTakeover_MoreKeysThanRemembered(t *testing.T) {
	t.Parallel()
	node := shared(t)
	dead, b := open(t, at(t, node.Addr())), open(t, at(t, node.Addr()))
	const remembered, others = 4, 20
	zkbackend.LimitSightings(b, remembered)
	for i := range others {
		_, err := dead.Acquire(t.Context(), request(fmt.Sprint("other", i), time.Hour))
		ok(t, "Acquire", err)
	}
	_, err := dead.Acquire(t.Context(), request("k", time.Second))
	ok(t, "Acquire", err)
	_, stop, err := b.Watch(t.Context(), "k")
	ok(t, "Watch", err)
	defer stop()
	eventually(t, "the dead holder's key", func() bool {
		for i := range others {
			_, err := b.Acquire(t.Context(), request(fmt.Sprint("other", i), time.Hour))
			want(t, "Acquire of a held key", err, core.ErrTaken)
		}
		_, err := b.Acquire(t.Context(), request("k", time.Hour))
		return err == nil
	})
}

package zkbackend_test

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/testutil"
)

func TestBackend_OneServer(t *testing.T) {
	t.Parallel()
	node := shared(t)
	b := open(t, at(t, node.Addr()))
	testutil.TestBackend(t, func(*testing.T) core.Backend { return b })
}

func TestBackend_Ensemble(t *testing.T) {
	t.Parallel()
	nodes := testutil.ZooKeeperEnsemble(t)
	t.Run("Inspect_OtherServer", func(t *testing.T) { inspectElsewhere(t, nodes) })
	b := open(t, zkbackend.New(nodes.Addrs()))
	testutil.TestBackend(t, func(*testing.T) core.Backend { return b })
}

// inspectElsewhere checks that what one process was answered, another one sees at once, on another
// server.
func inspectElsewhere(t *testing.T, nodes testutil.ZooKeeperNodes) {
	leader := nodes.Leader()
	one := open(t, zkbackend.New([]string{nodes[(leader+1)%len(nodes)].Addr()}))
	other := open(t, zkbackend.New([]string{nodes[(leader+2)%len(nodes)].Addr()}))
	for range 100 {
		g, err := one.Acquire(t.Context(), request("k", time.Minute))
		ok(t, "Acquire", err)
		st, err := other.Inspect(t.Context(), "k")
		ok(t, "Inspect", err)
		_, release := one.Release(t.Context(), g)
		free, err := other.Inspect(t.Context(), "k")
		ok(t, "Inspect", err)
		ok(t, "Release", release)
		if st.Status != core.Held || st.Owner != g.Owner || free.Status != core.Free {
			t.Fatalf("the key is %v after Acquire and %v after Release", st.Status, free.Status)
		}
	}
}

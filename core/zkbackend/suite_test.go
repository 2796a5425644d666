package zkbackend_test

import (
	"testing"

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
	b := open(t, zkbackend.New(nodes.Addrs()))
	testutil.TestBackend(t, func(*testing.T) core.Backend { return b })
}

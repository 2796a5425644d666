package core_test

import (
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

func TestBackend_Redis(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	testutil.TestBackend(t, func(*testing.T) core.Backend { return core.Clients(client) })
}

func TestBackend_Pools(t *testing.T) {
	t.Parallel()
	pool := testutil.Redis(t).Pool()
	testutil.TestBackend(t, func(*testing.T) core.Backend { return core.Pools(pool) })
}

func TestBackend_MiniRedis(t *testing.T) {
	t.Parallel()
	client := testutil.MiniRedis(t)
	testutil.TestBackend(t, func(*testing.T) core.Backend { return core.Clients(client) })
}

func TestBackend_Memory(t *testing.T) {
	t.Parallel()
	testutil.TestBackend(t, func(*testing.T) core.Backend { return testutil.Memory() })
}

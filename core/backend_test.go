package core_test

import (
	"io"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

func TestBackend_Redis(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	testutil.TestBackend(t, func(t *testing.T) core.Backend { return closed(t, core.Clients(client)) })
}

func TestBackend_Pools(t *testing.T) {
	t.Parallel()
	pool := testutil.Redis(t).Pool()
	testutil.TestBackend(t, func(t *testing.T) core.Backend { return closed(t, core.Pools(pool)) })
}

func TestBackend_MiniRedis(t *testing.T) {
	t.Parallel()
	client := testutil.MiniRedis(t)
	testutil.TestBackend(t, func(t *testing.T) core.Backend { return closed(t, core.Clients(client)) })
}

func TestBackend_Memory(t *testing.T) {
	t.Parallel()
	testutil.TestBackend(t, func(*testing.T) core.Backend { return testutil.Memory() })
}

// closed closes a backend with its test.
func closed(t *testing.T, b core.Backend) core.Backend {
	t.Cleanup(func() { ok(t, "Close", b.(io.Closer).Close()) })
	return b
}

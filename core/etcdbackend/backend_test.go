package etcdbackend_test

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestConformance runs the suite of all backends.
func TestConformance(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	backendtest.TestSealer(t, func(t *testing.T) core.Backend {
		return backendtest.Open(t, etcdbackend.New(client, etcdbackend.WithTimeout(20*time.Second)))
	})
}

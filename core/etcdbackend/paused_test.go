package etcdbackend_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/internal/pausetest"
	"github.com/onelane/onelane/testutil"
)

// atAddress is the backend of a child process; see TestMain.
func atAddress(address string) (core.Opener, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	return etcdbackend.New(client, etcdbackend.WithTimeout(20*time.Second)), err
}

// A process that stands still for longer than its lease loses its lock, and does no harm when it goes
// on.
func TestHolder_Paused(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	pausetest.Run(t, etcd.Addr(), etcdbackend.New(etcd.Client(), etcdbackend.WithTimeout(20*time.Second)))
}

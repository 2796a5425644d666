package redisbackend_test

import (
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestBackend_Redis(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	backendtest.TestSealer(t, func(t *testing.T) core.Backend { return open(t, one(client)) })
}

func TestBackend_Pools(t *testing.T) {
	t.Parallel()
	pool := testutil.Redis(t).Pool()
	backendtest.TestSealer(t, func(t *testing.T) core.Backend { return open(t, pooled(pool)) })
}

func TestBackend_MiniRedis(t *testing.T) {
	t.Parallel()
	client := testutil.MiniRedis(t)
	backendtest.TestSealer(t, func(t *testing.T) core.Backend { return open(t, one(client)) })
}

func TestBackend_RedisCluster(t *testing.T) {
	t.Parallel()
	client := testutil.RedisCluster(t, 3).Client()
	backendtest.TestSealer(t, func(t *testing.T) core.Backend { return open(t, one(client)) })
}

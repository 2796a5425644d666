package rueidisdriver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/redisbackend/rueidisdriver"
	"github.com/onelane/onelane/testutil"
)

func TestNew_BadClients(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	one, again := single(t, node.Addr()), single(t, node.Addr())
	shards := clustered(t, testutil.RedisCluster(t, 3))
	mixed := rueidisdriver.New(one)
	mixed.Clients = redisbackend.New(node.Client()).Clients
	confirmed := rueidisdriver.New(one, single(t, testutil.Redis(t).Addr()), single(t, testutil.Redis(t).Addr()))
	confirmed.Replicas, confirmed.ReplicaTimeout = 1, time.Second
	for says, b := range map[string]core.Opener{
		"at least one":        rueidisdriver.New(),
		"client 1 is nil":     rueidisdriver.New(nil),
		"client 2 is nil":     rueidisdriver.New(one, nil, one),
		"outvote":             rueidisdriver.New(one, one),
		"are one Redis":       rueidisdriver.New(one, again, one),
		"of a Redis Cluster":  rueidisdriver.New(one, shards, one),
		"Clients or Pools":    mixed,
		"Replicas is for one": confirmed,
		"node time-out -1ns ": func() redisbackend.Config { b := rueidisdriver.New(one); b.NodeTimeout = -1; return b }(),
	} {
		if _, err := core.New(b); err == nil || !strings.Contains(err.Error(), says) || !strings.HasPrefix(err.Error(), "redisbackend: ") {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
	}
}

func Example() {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
	if err != nil {
		return
	}
	defer client.Close()
	locker, err := core.New(rueidisdriver.New(client))
	if err != nil {
		return
	}
	defer locker.Close()
	// locker.Acquire, locker.Do …
}

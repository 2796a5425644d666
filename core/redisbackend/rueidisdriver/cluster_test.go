package rueidisdriver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
	"github.com/onelane/onelane/testutil"
)

// dialing is a client that connects until connected is closed, and ignores contexts meanwhile.
type dialing struct {
	rueidis.Client
	connected chan struct{}
}

func (c dialing) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	<-c.connected
	return c.Client.Do(ctx, cmd)
}

// A call that follows ASK is given up at its deadline, and followed to its end.
func TestAsking_GivenUp(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{node.Addr()}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := dialing{client, make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // not over before the call begins
	defer cancel()
	set := driver.Plain("set", "k", "v")
	late, err := asking{c}.Do(ctx, set)
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrNotSent) || late == nil {
		t.Fatalf("Do: %v, %v", late, err)
	}
	close(c.connected)
	<-late
	if got := node.Client().Get(t.Context(), "k").Val(); got != "v" || set.Value != nil {
		t.Errorf("the key is %q, the reply %v", got, set.Value)
	}
	if _, err := (asking{c}).Do(t.Context(), set); err != nil || set.Value != "OK" {
		t.Errorf("Do: %v, %v", set.Value, err)
	}
}

// A master that has several ranges of slots is one master.
func TestMasters_OnceEach(t *testing.T) {
	t.Parallel()
	shards := testutil.RedisCluster(t, 3)
	shards.BeginMove("k", (shards.Owner("k")+1)%3).EndMove()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{shards.Nodes[0].Addr()}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if all, err := newCluster(client).Masters(t.Context()); err != nil || len(all) != 3 {
		t.Errorf("Masters: %q, %v", all, err)
	}
}

package rueidisdriver

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// node makes connections to one Redis.
type node struct {
	address func() string
	client  func() (rueidis.Client, error)
}

// newNode returns the node of a client of one Redis, or of Sentinel.
func newNode(client rueidis.Client) driver.Node {
	address := func() string { return strings.Join(slices.Sorted(maps.Keys(client.Nodes())), ",") }
	return openNode(client.Mode() == rueidis.ClientModeSentinel, address, func() (rueidis.Client, error) { return client, nil })
}

func openNode(follows bool, address func() string, client func() (rueidis.Client, error)) driver.Node {
	n := &node{address, client}
	return driver.Node{Address: address, Open: n.open, Listen: n.listen, Follows: follows}
}

func (n *node) open() driver.Connection { return &connection{node: n} }

// listen implements driver.Node.
func (n *node) listen(_ context.Context, heard func(driver.Event)) (driver.PubSub, error) {
	d, err := n.dedicate()
	if err != nil {
		return nil, err
	}
	return newPubSub(d, heard), nil
}

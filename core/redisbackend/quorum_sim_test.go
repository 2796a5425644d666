//go:build !race

package redisbackend_test

import (
	"testing"

	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// The simulation is worth as much as its nodes are like Redis: the same random calls get the same
// answers and leave the same state.
func TestSimNode_AnswersAsRedis(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	if diff := redisbackend.CompareSimNode(t, client, nil); diff != "" {
		t.Error(diff)
	}
	if redisbackend.CompareSimNode(t, client, redisbackend.SlowSimNode) == "" {
		t.Error("a clock that is 10 s late makes no difference: the calls are too tame")
	}
}

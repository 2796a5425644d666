package main

import (
	"testing"

	"github.com/onelane/onelane/testutil"
)

// A slot moves to another master. Its old master answers ASK for a key that it does not have.
// Either the key was moved, or its holder released it after SCAN. The other keys are listed all the
// same.
func TestList_HeldWhileASlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	const name = "onelane:{job:1}"
	from := cluster.Owner(name)
	cluster.BeginMove(name, (from+1)%3)
	names, err := withoutSeals(t.Context(), cluster.Nodes[from].Client(), []string{name})
	if err != nil || len(names) != 1 {
		t.Errorf("got %q, %v, want the name, which Inspect looks at", names, err)
	}
}

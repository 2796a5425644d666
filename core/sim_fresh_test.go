package core_test

import "testing"

// Nodes that are all new when a process first asks them are taken for a new quorum. One of them may have been used, and have been
// restarted since: then it is younger than the others, or another still knows the holder.
func TestSimulation_ANewQuorumIsNotOneOfWhichANodeForgot(t *testing.T) {
	t.Parallel()
	focus := func(p *simPlan) {
		if p.nodes == 1 {
			p.nodes = 3
		}
		p.keys, p.restarts, p.age = 1, true, 0
	}
	seeds := fromEnv(t, "ONELANE_SIM_SEEDS", ciSeeds) / 2
	locks := 0
	for seed := range seeds {
		w := simulate(t, newPlan(uint64(seed), true, focus), simRules{})
		for _, v := range w.history.violations {
			t.Errorf("seed %d (%d nodes): %s", seed, w.plan.nodes, v)
		}
		locks += w.history.count["acquire: done"]
	}
	t.Logf("%d locks in %d seeds", locks, seeds)
	if locks < seeds {
		t.Error("nothing is proved where nothing is locked")
	}
}

package core_test

import (
	"strings"
	"testing"
	"time"
)

// A simulation that finds nothing proves something only if it finds what is there: without each of these rules there must be a
// violation, of the kind that the rule is for, within a few hundred seeds.
func TestSimulation_FindsWhatARuleIsFor(t *testing.T) {
	t.Parallel()
	const most = 300 // seeds
	onThree := func(p *simPlan) { p.nodes, p.keys = 3, 1 }
	sealing := func(p *simPlan) {
		onThree(p)
		p.seals, p.unseals, p.net.lost, p.net.replyLost = 16, 0, .3, .1
	}
	unsealing := func(p *simPlan) {
		onThree(p)
		p.seals, p.unseals, p.memory = 16, 6, 0
	}
	remembering := func(p *simPlan) { p.keys, p.seals, p.unseals, p.memory = 1, 16, 16, time.Second }
	revoking := func(p *simPlan) { p.keys, p.revokes, p.net.slow = 1, 8, .3 }
	for name, c := range map[string]struct {
		off   simRules
		kind  string
		focus func(*simPlan)
	}{
		"no owner check on release":              {simRules{rules: rules{releaseAnothers: true}}, "I1", nil},
		"take-back on extend":                    {simRules{rules: rules{extendTakesBack: true}}, "I3", nil},
		"extend that shortens":                   {simRules{rules: rules{extendShortens: true}}, "I1", nil},
		"max-only tokens, not written back":      {simRules{rules: rules{raiseNothing: true}}, "tokens", nil},
		"an undecided seal answered":             {simRules{rules: rules{repairNothing: true}}, "model", sealing},
		"an old seal repaired":                   {simRules{rules: rules{repairOldSeals: true}}, "model", nil},
		"a counter that unsealing leaves":        {simRules{rules: rules{unsealLeavesFence: true}}, "model", unsealing},
		"a restarted node that does not abstain": {simRules{rules: rules{neverAbstain: true}}, "I1", onThree},
		"deadline ignored":                       {simRules{deadlineIgnored: true}, "I1", nil},
		"one owner reused after a clean-up":      {simRules{ownerReused: true}, "I1", nil},
		"whoever holds the key revoked":          {simRules{revokeWhoever: true}, "I1", revoking},
		"a memory that Unseal does not end":      {simRules{memoryStays: true}, "model", remembering},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			var others []string
			for seed := range most {
				for _, v := range simulate(t, newPlan(uint64(seed), true, c.focus), c.off).history.violations {
					if strings.HasPrefix(v, c.kind) {
						t.Logf("seed %d, after %v: %s", seed, time.Since(start), v)
						return
					}
					others = append(others, v)
				}
			}
			t.Errorf("not found in %d seeds; but %q", most, others)
		})
	}
}

// With the assumptions broken locks do not exclude each other: the simulation must see it, and what is not fenced must lose updates.
// What registers its token first (by a strict >) and writes only while it is the one registered loses none.
func TestSimulation_BrokenAssumptionsBreakExclusionAndNotTheFence(t *testing.T) {
	t.Parallel()
	overlaps, lost, written := 0, 0, 0
	for seed := range ciSeeds / 2 {
		w := simulate(t, newPlan(uint64(seed), false, nil), simRules{})
		overlaps += len(w.history.overlaps())
		for key, r := range w.resources {
			lost += r.unfencedDone - r.unfenced
			written += r.fencedDone
			if r.fenced != r.fencedDone {
				t.Errorf("seed %d: %d fenced writes to %s were accepted, %d are there", seed, r.fencedDone, key, r.fenced)
			}
		}
	}
	t.Logf("%d seeds: %d overlaps, %d unfenced updates lost; %d fenced writes, none lost", ciSeeds/2, overlaps, lost, written)
	if overlaps == 0 || lost == 0 || written == 0 {
		t.Error("nothing is proved where nothing happens")
	}
}

// A quorum survives that nodes forget what they granted, one after the other, since a restarted one waits for a TTL.
func TestSimulation_RestartedNodesAbstain(t *testing.T) {
	t.Parallel()
	restarts := func(p *simPlan) {
		if p.nodes == 1 {
			p.nodes = 3
		}
		p.keys, p.restarts = 1, true
	}
	overlaps := func(off rules) (n int) {
		for seed := range ciSeeds / 4 {
			n += len(simulate(t, newPlan(uint64(seed), true, restarts), simRules{rules: off}).history.overlaps())
		}
		return n
	}
	with, without := overlaps(rules{}), overlaps(rules{neverAbstain: true})
	t.Logf("%d seeds with nodes that restart empty: %d overlaps, and %d if they do not abstain", ciSeeds/4, with, without)
	if with > 0 || without == 0 {
		t.Error("want none, and some")
	}
}

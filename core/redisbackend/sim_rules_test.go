package redisbackend

import (
	"testing"
	"time"

	"github.com/onelane/onelane/internal/check"
)

// A random simulation that finds nothing proves something only if it finds broken rules. Rules that it
// finds too seldom have schedules.
func TestSimulation_FindsBrokenRules(t *testing.T) {
	t.Parallel()
	const most = 400
	for name, off := range map[string]simRules{
		"trust": {trust: true}, "noVoid": {noVoid: true}, "noAbstain": {noAbstain: true},
		"noPrepare": {noPrepare: true},
	} {
		if !check.Long && name != "noVoid" {
			continue // the others are found after many seeds
		}
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			for seed := range most {
				plan := simPlanOf(seed)
				plan.tidiless = true // so that a seed is the same each time
				if _, _, bad := simulate(t, plan, off); len(bad) > 0 {
					t.Logf("seed %d, after %v: %s", seed, time.Since(start), bad[0])
					return
				}
			}
			t.Errorf("not found in %d seeds", most)
		})
	}
}

package core_test

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The simulation: processes with several clients use Lockers on 1, 3 or 5 simulated nodes, in fake time, while messages are lost,
// late and repeated, nodes stop, restart and forget, clocks jump, links are cut, processes stand still and die. What was seen is
// checked against the invariants.
//
//	ONELANE_SIM_SEEDS=5000 go test -run 'TestSimulation$' -v ./core   # more of them
//	ONELANE_SIM_SEED=42 go test -run 'TestSimulation$' -v ./core      # everything that happens in one
const ciSeeds = 240

// fromEnv reads a number that the environment may set.
func fromEnv(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// planOf is the plan of a seed: in every fourth the assumptions under which locks exclude each other do not hold.
func planOf(seed int) *simPlan { return newPlan(uint64(seed), seed%4 != 0, nil) }

func TestSimulation(t *testing.T) {
	t.Parallel()
	if seed := fromEnv(t, "ONELANE_SIM_SEED", -1); seed >= 0 {
		replay(t, seed)
		return
	}
	start, seeds := time.Now(), fromEnv(t, "ONELANE_SIM_SEEDS", ciSeeds)
	seen := map[string]int{}
	bad, written := 0, 0
	for seed := range seeds {
		w := simulate(t, planOf(seed), simRules{})
		for _, v := range w.history.violations {
			t.Errorf("seed %d (%d nodes): %s", seed, w.plan.nodes, v)
		}
		if len(w.history.violations) > 0 {
			bad++
		}
		for what, n := range w.history.count {
			seen[what] += n
		}
		for _, r := range w.resources {
			written += r.fencedDone
		}
	}
	t.Logf("%d seeds in %v, %d with violations; %d fenced writes", seeds, time.Since(start).Round(time.Millisecond), bad, written)
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%6d %s", seen[what], what)
	}
	for _, what := range []string{"acquire: done", "acquire: core: key is taken", "acquire: core: key is sealed", "acquire: core: backend is unavailable",
		"extend: done", "extend: core: lock is lost", "release: done", "release: core: lock is lost", "seal: done", "seal: core: lock is lost", "unseal: done",
		"seal: core: backend is unavailable", "inspect: done"} {
		if seen[what] == 0 {
			t.Errorf("it never came to %q: the simulation has become too tame", what)
		}
	}
}

func TestSimulation_TheSameSeedGivesTheSameHistory(t *testing.T) {
	t.Parallel()
	for seed := range fromEnv(t, "ONELANE_SIM_SEEDS", ciSeeds) / 10 {
		var histories [2][]string
		for i := range histories {
			p := planOf(seed)
			p.noting = true
			h := simulate(t, p, simRules{}).history
			slices.Sort(h.notes) // two may be of the same instant
			histories[i] = append(strings.Split(h.String(), "\n"), h.notes...)
		}
		for i, line := range histories[0] {
			if i >= len(histories[1]) || line != histories[1][i] {
				t.Errorf("seed %d: in one run\n%s\nand not in another", seed, line)
				break
			}
		}
	}
}

// replay shows one seed.
func replay(t *testing.T, seed int) {
	p := planOf(seed)
	p.noting = true
	h := simulate(t, p, simRules{}).history
	t.Logf("%+v", *p)
	t.Log("\n" + strings.Join(h.notes, "\n") + "\n" + h.String())
	if len(h.violations) > 0 {
		t.Fail()
	}
}

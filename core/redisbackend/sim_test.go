package redisbackend

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/onelane/onelane/internal/check"
)

// The simulation: clients drive the verbs of the quorum on 3 or 5 simulated nodes, in fake time.
// Messages are lost, late and repeated. Nodes hang, restart and forget, links are cut, and clocks
// differ. Processes die in the middle of a seal. The model checks what the clients saw.
//
//	ONELANE_LONG=1 go test -run 'TestSimulation$' ./core/redisbackend                # as in .ci/run
//	ONELANE_SIM_SEEDS=5000 go test -run 'TestSimulation$' -v ./core/redisbackend   # more of them
//	ONELANE_SIM_SEED=42 go test -run 'TestSimulation$' -v ./core/redisbackend      # one, in detail
const simSeeds = 300

// simSeedsByDefault returns a tenth of simSeeds unless ONELANE_LONG is set. With the race detector it
// is always a tenth: a simulation is ten times slower then.
func simSeedsByDefault() int {
	if check.Long && !check.Race {
		return simSeeds
	}
	return simSeeds / 10
}

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

func simPlanOf(seed int) *simPlan { return newSimPlan(uint64(seed), simKind(seed)%simKinds) }

func TestSimulation(t *testing.T) {
	t.Parallel()
	first, seeds := 0, fromEnv(t, "ONELANE_SIM_SEEDS", simSeedsByDefault())
	one := fromEnv(t, "ONELANE_SIM_SEED", -1)
	if one >= 0 {
		first, seeds = one, 1
	}
	start, seen, bad := time.Now(), map[string]int{}, 0
	for seed := first; seed < first+seeds; seed++ {
		p := simPlanOf(seed)
		p.log = one >= 0
		h, w, violations := simulate(t, p, simRules{})
		for _, v := range violations {
			t.Errorf("seed %d (%d nodes): %s", seed, p.nodes, v)
		}
		if len(violations) > 0 {
			bad++
		}
		for what, n := range h.count {
			seen[what] += n
		}
		if p.log {
			for _, n := range w.notes {
				t.Log(n)
			}
			for _, o := range h.ops {
				t.Log(o)
			}
		}
	}
	t.Logf("%d seeds in %v, %d with violations", seeds, time.Since(start).Round(time.Millisecond), bad)
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%6d %s", seen[what], what)
	}
	for _, what := range []string{"acquire: done", "acquire: core: key is taken", "acquire: core: key is sealed",
		"acquire: core: key is orphaned", "acquire: core: backend is unavailable", "extend: done", "release: done",
		"release: core: lock is lost", "seal: done", "seal: core: lock is lost", "seal: core: backend is unavailable",
		"unseal: done", "inspect: done"} {
		if seeds >= simSeeds && seen[what] == 0 {
			t.Errorf("%q never happened: the simulation has become too tame", what)
		}
	}
}

func TestSimulation_SameSeedSameHistory(t *testing.T) {
	t.Parallel()
	for seed := range 30 {
		var notes [2][]string
		for i := range notes {
			p := simPlanOf(seed)
			p.log, p.tidiless = true, true
			h, w, _ := simulate(t, p, simRules{})
			notes[i] = w.notes
			for _, o := range h.ops {
				notes[i] = append(notes[i], o.String())
			}
		}
		if i := differs(notes[0], notes[1]); i >= 0 {
			t.Errorf("seed %d: one run says\n%s\nand another\n%s", seed, at(notes[0], i), at(notes[1], i))
		}
	}
}

// differs returns the first index at which two lists differ, or -1.
func differs(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if at(a, i) != at(b, i) {
			return i
		}
	}
	return -1
}

func at(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return ""
}

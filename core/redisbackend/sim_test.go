//go:build !race

package redisbackend

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/internal/check"
)

// In the simulation, clients call Acquire, Extend and Release of the package's own quorum, in fake
// time. Its 3 or 5 simulated nodes run the package's own scripts. Messages are lost, late and
// repeated. Links are cut, and clocks differ. Nodes restart with their data, with none, or with old
// data. Callers give up and processes die, even in the middle of a call.
//
//	ONELANE_LONG=1 go test -run 'TestSimulation$' ./core/redisbackend                 # as in .ci/run
//	ONELANE_SIM_SEEDS=100000 go test -run 'TestSimulation$' -v ./core/redisbackend   # more seeds, from ONELANE_SIM_FIRST on
//	ONELANE_SIM_SEED=42 go test -run 'TestSimulation$' -v ./core/redisbackend        # one, in detail
const (
	simSeeds     = 5000
	simSeedsFast = 100
)

// simConfigs are what a seed may be about. In all of them no two clients may hold the key at once,
// and tokens go up.
var simConfigs = []struct {
	name   string
	faults func(*simFaults)
	life   bool // promises live for 5 s
}{
	{name: "inside the assumptions", faults: func(*simFaults) {}},
	{name: "each clock 2 s off", faults: func(f *simFaults) { f.nodeOff, f.clientOff = 2*simS, 2*simS }},
	{name: "callers 2 s off, promises live 5 s", life: true,
		faults: func(f *simFaults) { f.nodeOff, f.clientOff, f.length = 0, 2*simS, 60*simS }},
	{name: "all nodes restart at once", faults: func(f *simFaults) { f.restarts = simAll }},
	{name: "one caller 1 h ahead", faults: func(f *simFaults) { f.badClient = time.Hour }},
	{name: "one node 1 h behind", faults: func(f *simFaults) { f.badNode = -time.Hour }},
	{name: "tokens: nodes' clocks step within 2 s, promises live 5 s", life: true,
		faults: func(f *simFaults) { f.nodeOff, f.clientOff, f.steps, f.length = 2*simS, 2*simS, true, 60*simS }},
	{name: "tokens: nodes' clocks step back 30 s, promises live 5 s, no restart", life: true,
		faults: func(f *simFaults) { f.back, f.badClient, f.restarts, f.length = 30*simS, -30*simS, simNone, 40*simS }},
}

// runSeed runs a seed. Its configuration and the number of nodes follow from the seed.
func runSeed(t *testing.T, l *simLua, seed int, prepare func(*simWorld)) *simRun {
	c, f := simConfigs[seed/2%len(simConfigs)], inside()
	c.faults(&f)
	return simulate(t, l, uint64(seed), 3+seed%2*2, f, func(w *simWorld) {
		if c.life {
			w.mutant = strings.NewReplacer("LIFE = 2000000, 60000", "LIFE = 2000000, 5000")
		}
		if prepare != nil {
			prepare(w)
		}
	})
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

func TestSimulation(t *testing.T) {
	t.Parallel()
	if one := fromEnv(t, "ONELANE_SIM_SEED", -1); one >= 0 {
		run := runSeed(t, newSimLua(), one, func(w *simWorld) { w.log = true })
		t.Logf("%s\n%s", strings.Join(run.notes, "\n"), run.bad)
		if run.bad != "" {
			t.Fail()
		}
		return
	}
	seeds := simSeedsFast
	if check.Long {
		seeds = simSeeds
	}
	if check.Race {
		seeds = simSeedsFast / 10
	}
	first := fromEnv(t, "ONELANE_SIM_FIRST", 0)
	seeds = first + fromEnv(t, "ONELANE_SIM_SEEDS", seeds)
	var mu sync.Mutex
	counts, start := make([]simCount, 2*len(simConfigs)), time.Now()
	t.Run("seeds", func(t *testing.T) {
		workers := runtime.GOMAXPROCS(0)
		for worker := range workers {
			t.Run(fmt.Sprint(worker), func(t *testing.T) {
				t.Parallel()
				l := newSimLua()
				for seed := first + worker; seed < seeds; seed += workers {
					run := runSeed(t, l, seed, nil)
					if run.bad != "" {
						t.Errorf("seed %d: %s", seed, run.bad)
					}
					mu.Lock()
					counts[seed%len(counts)].add(run.count, run.bad)
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("seeds %d to %d in %v", first, seeds-1, time.Since(start).Round(time.Millisecond))
	t.Logf("| N | configuration | runs | attempts | holds | renewals | losses | violations |")
	for i, c := range counts {
		t.Logf("| %d | %s | %d | %d | %d | %d | %d | %d |", 3+i%2*2, simConfigs[i/2].name, c.runs, c.attempts, c.holds, c.renewals, c.losses, c.violations)
		if c.runs >= 20 && (c.holds == 0 || c.renewals == 0 || c.attempts == c.holds) {
			t.Errorf("%s: the simulation has become too tame: %+v", simConfigs[i/2].name, c)
		}
	}
}

// A seed is worth something only if it finds again what it found.
func TestSimulation_SameSeedSameRun(t *testing.T) {
	t.Parallel()
	for seed := range 2 * len(simConfigs) {
		var notes [2][]string
		for i := range notes {
			notes[i] = runSeed(t, newSimLua(), seed, func(w *simWorld) { w.log = true }).notes
		}
		if !slices.Equal(notes[0], notes[1]) {
			i := 0
			for i < min(len(notes[0]), len(notes[1])) && notes[0][i] == notes[1][i] {
				i++
			}
			t.Errorf("seed %d: two runs differ from line %d on:\n%q\n%q", seed, i, notes[0][i:min(i+3, len(notes[0]))], notes[1][i:min(i+3, len(notes[1]))])
		}
	}
}

package redisbackend

import (
	"testing"
	"time"
)

var theLua = newSimLua()

func luaOf(t *testing.T) *simLua { return theLua }

func TestSimulation(t *testing.T) {
	for _, n := range []int{3, 5} {
		start := time.Now()
		var c simCount
		for seed := range uint64(300) {
			run := simulate(t, seed, n, inside(), nil)
			if run.bad != "" {
				t.Errorf("seed %d: %s", seed, run.bad)
			}
			c.attempts += run.count.attempts
			c.holds += run.count.holds
			c.renewals += run.count.renewals
			c.losses += run.count.losses
		}
		t.Log(n, time.Since(start), c)
	}
}

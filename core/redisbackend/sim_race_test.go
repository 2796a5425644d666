//go:build race

package redisbackend

// simSlowness is how much slower a simulation is.
const simSlowness = 10

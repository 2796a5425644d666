//go:build race

package redisbackend

// simRace is whether the race detector is on.
const simRace = true

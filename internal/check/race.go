//go:build race

package check

// Race is whether the race detector is on. Memory and time are not what they are without it.
const Race = true

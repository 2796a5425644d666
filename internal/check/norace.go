//go:build !race

package check

// Race is whether the race detector is on.
const Race = false

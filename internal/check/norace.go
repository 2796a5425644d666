//go:build !race

package check

// Race is true if the race detector is on.
const Race = false

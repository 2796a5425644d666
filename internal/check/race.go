//go:build race

package check

// Race is true if the race detector is on. It costs memory and time.
const Race = true

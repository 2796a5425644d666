//go:build race

package ginlock_test

const race = true // the race detector is on: memory and time are not what they are without it

//go:build race

package core_test

const race = true // the race detector is on: memory and time are not what they are without it

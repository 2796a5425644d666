//go:build race

package redisbackend_test

const race = true // the race detector is on: memory and time are not what they are without it

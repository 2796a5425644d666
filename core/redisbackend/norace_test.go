//go:build !race

package redisbackend_test

const race = false // see race_test.go

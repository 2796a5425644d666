//go:build !race

package ginlock_test

const race = false // see race_test.go

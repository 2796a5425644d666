//go:build !race

package core_test

const race = false // see race_test.go

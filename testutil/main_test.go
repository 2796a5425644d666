package testutil_test

import (
	"testing"

	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/internal/server"
)

func TestMain(m *testing.M) {
	check.Parallel(3)
	server.InMemory = true
	m.Run()
}

package testutil_test

import (
	"testing"

	"github.com/onelane/onelane/internal/check"
)

func TestMain(m *testing.M) {
	check.Parallel(3)
	m.Run()
}

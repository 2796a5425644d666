package backendtest_test

import (
	"database/sql"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// Tests of a service bring their own drivers. Two drivers of one name, such as "sqlite" of
// modernc.org/sqlite and of glebarez/go-sqlite, panic before the first test runs.
func TestMemory_RegistersNoDriver(t *testing.T) {
	t.Parallel()
	l, err := core.New(backendtest.Memory())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if drivers := sql.Drivers(); len(drivers) > 0 {
		t.Errorf("Memory registers the drivers %v with database/sql; tests that import another driver of such a name panic at start", drivers)
	}
}

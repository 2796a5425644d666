package sqlerr_test

import (
	"fmt"
	"testing"

	"github.com/onelane/onelane/gormlock/testdata/sqlite3"
	"github.com/onelane/onelane/internal/sqlerr"
)

// The whole code tells a repeat of a unique key from other refusals.
func TestSQLiteCode_MattnsFields(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		code int
	}{
		{sqlite3.Error{Code: 19, ExtendedCode: 2067}, 2067},
		{fmt.Errorf("insert: %w", sqlite3.Error{Code: 5, ExtendedCode: 517}), 517},
		{sqlite3.Error{Code: 19}, 19},
	} {
		if code, ok := sqlerr.SQLiteCode(c.err); !ok || code != c.code {
			t.Errorf("%v: got %d, %v, want %d", c.err, code, ok, c.code)
		}
	}
	if code, ok := sqlerr.SQLiteCode(fmt.Errorf("other")); ok {
		t.Errorf("an error of another kind has the code %d", code)
	}
}

package idempotency_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/keytext"
	"github.com/onelane/onelane/testutil"
)

// A value is short enough, and the key that is made of it is not: a colon takes three bytes there.
func TestLockByKey_RefusedByTheLocker(t *testing.T) {
	t.Parallel()
	s := serve(t, idempotency.LockByKey("{header.X-A}", idempotency.WithLocker(testutil.Locker(t)))(http.NotFoundHandler()))
	a := s.post(t.Context(), "/", nil, "X-A", strings.Repeat(":", 255))
	a.refused(t, idempotency.CodeKeyInvalid)
	if !strings.Contains(a.body, keytext.LockRefused) {
		t.Error(a.body)
	}
}

package grpclock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/keytext"
	"github.com/onelane/onelane/testutil"
)

// A value is short enough, and the key that is made of it is not: a colon takes three bytes there.
func TestLockByKey_RefusedByTheLocker(t *testing.T) {
	t.Parallel()
	lock := grpclock.LockByKey("{metadata.x-a}", idempotency.WithLocker(testutil.Locker(t)))
	s := serve(t, &orders{}, grpc.UnaryInterceptor(lock))
	a := s.create("k", &request{}, "x-a", strings.Repeat(":", 255))
	if status.Code(a.err) != codes.InvalidArgument || !strings.Contains(a.err.Error(), keytext.LockRefused) {
		t.Error(a.err)
	}
}

// If a function makes the key, a refusal says what to change, and not why the function failed.
func TestBy_RefusedTexts(t *testing.T) {
	t.Parallel()
	const refused = "The key that the server makes of the request is refused: "
	const change = "Change the values that the key is made of."
	l := idempotency.WithLocker(testutil.Locker(t))
	for name, c := range map[string]struct {
		key    string
		err    error
		reason string
		texts  []string
	}{
		"none":      {reason: "IDEMPOTENCY_KEY_MISSING", texts: []string{"Send the values that the key is made of."}},
		"error":     {err: errors.New("no keys today"), reason: "IDEMPOTENCY_KEY_INVALID", texts: []string{refused + "it could not be made.", change}},
		"character": {key: "a\x01b", reason: "IDEMPOTENCY_KEY_INVALID", texts: []string{refused + "it has a character that is not allowed.", change}},
	} {
		key := func(context.Context, any) (string, error) { return c.key, c.err }
		for _, protect := range []grpc.UnaryServerInterceptor{
			grpclock.By(key, l, idempotency.Require()), grpclock.LockBy(key, l, idempotency.Require()),
		} {
			a := serve(t, &orders{}, grpc.UnaryInterceptor(protect)).create("k", &request{})
			a.wantRefusal(t, codes.InvalidArgument, c.reason)
			for _, text := range c.texts {
				if !strings.Contains(a.err.Error(), text) {
					t.Errorf("%s: %v, it must have %q", name, a.err, text)
				}
			}
			if strings.Contains(a.err.Error(), "no keys today") {
				t.Errorf("%s: %v", name, a.err)
			}
		}
	}
}

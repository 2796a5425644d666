package grpclock_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"

	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestWiringPanics(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, want string
		wire       func()
	}{
		{"no metadata", "pass the name of metadata", func() { grpclock.ByMetadata("") }},
		{"bad metadata", "pass the name of metadata", func() { grpclock.ByMetadata("a b") }},
		{"binary metadata", "-bin is not", func() { grpclock.ByMetadata("key-bin") }},
		{"gRPC's metadata", "gRPC's own", func() { grpclock.ByMetadata("GRPC-Previous-RPC-Attempts") }},
		{"metadata that gRPC takes out", "use another name", func() { grpclock.ByMetadata("Host") }},
		{"no field", "pass the path of a field", func() { grpclock.ByField("") }},
		{"bad field", "pass the path of a field", func() { grpclock.ByField("a..b") }},
		{"no template", "is empty", func() { grpclock.ByKey("") }},
		{"bad template", "braces must be pairs", func() { grpclock.ByKey("a{") }},
		{"template of Gin", "it must be {req.path.of.field}", func() { grpclock.ByKey("{param.id}") }},
		{"template without a field", "it must be {req.path.of.field}", func() { grpclock.ByKey("{req.}") }},
		{"template of no metadata", "pass the name of metadata", func() { grpclock.ByKey("{metadata}") }},
		{"template with two principals", "it must be {req.path.of.field}", func() { grpclock.ByKey("{principal.name}") }},
		{"nil key", "pass a function", func() { grpclock.By(nil) }},
		{"nil locker", "check the error of core.New", func() { grpclock.ByMetadata("k", idempotency.WithLocker(nil)) }},
		{"nil principal", "Principal(nil)", func() { grpclock.ByMetadata("k", grpclock.Principal(nil)) }},
		{"nil Decide", "Decide(nil)", func() { grpclock.ByMetadata("k", grpclock.Decide(nil)) }},
		{"nil Recover", "Recover(nil)", func() { grpclock.ByMetadata("k", grpclock.Recover(nil)) }},
		{"nil Fingerprint", "Fingerprint(nil)", func() { grpclock.ByMetadata("k", grpclock.Fingerprint(nil)) }},
		{"negative wait", "Wait(-1s)", func() { grpclock.ByMetadata("k", idempotency.Wait(-time.Second)) }},
		{"short retention", "Retain(1ms)", func() { grpclock.ByMetadata("k", idempotency.Retain(time.Millisecond)) }},
		{"large MaxBody", "MaxBody", func() { grpclock.ByMetadata("k", idempotency.MaxBody(1<<30)) }},
		{"a cookie is recorded", "it cannot be recorded", func() { grpclock.ByMetadata("k", grpclock.Metadata("Set-Cookie")) }},
		{"gRPC's metadata is recorded", "it cannot be recorded", func() { grpclock.ByMetadata("k", grpclock.Metadata("grpc-status")) }},
		{"a constant key", "without a field", func() { grpclock.ByKey("all") }},
		{"client without a name", `UnaryClientInterceptor(""): pass the name of metadata`, func() { grpclock.UnaryClientInterceptor("") }},
		{"client with binary metadata", "-bin is not", func() { grpclock.UnaryClientInterceptor("Key-Bin") }},
		{"nil lock key", "pass a function", func() { grpclock.LockBy(nil) }},
		{"bad lock template", "braces must be pairs", func() { grpclock.LockByKey("{") }},
		{"lock with a negative wait", "Wait(-1s)", func() { grpclock.LockByKey("k", idempotency.Wait(-time.Second)) }},
		{"nil stream key", "pass a function", func() { grpclock.StreamLockBy(nil) }},
		{"stream template of a request", "there is no request yet", func() { grpclock.StreamLockByKey("{req.id}") }},
		{"bad stream template", "braces must be pairs", func() { grpclock.StreamLockByKey("{") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer func() {
				text := fmt.Sprint(recover())
				if !strings.HasPrefix(text, "grpclock: ") || !strings.Contains(text, tc.want) {
					t.Errorf("%q does not say %q", text, tc.want)
				}
			}()
			tc.wire()
		})
	}
}

// TestContract wires the interceptors as the README shows.
func TestContract(t *testing.T) {
	t.Parallel()
	grpc.NewServer(grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key"))).Stop()
	grpc.NewServer(grpc.ChainUnaryInterceptor(grpclock.ByMetadata("idempotency-key", nil), grpclock.ByField("request_id"), grpclock.ByProto(),
		grpclock.LockByKey("order:{req.order_id}")), grpc.StreamInterceptor(grpclock.StreamLockByKey("room:{metadata.room}"))).Stop()
}

func FuzzPath(f *testing.F) {
	for _, seed := range []string{"order_id", "customer.id", "customer.parent.parent.number", "tags", "", ".", "a..b", "customer.", "\xff"} {
		f.Add(seed)
	}
	d := (&testpb.Request{}).ProtoReflect().Descriptor()
	f.Fuzz(func(t *testing.T, text string) {
		p, err := grpclock.ResolvePath(d, text)
		if err != nil {
			if p != nil {
				t.Fatalf("%q: %v beside %v", text, p, err)
			}
			return
		}
		if len(p) != strings.Count(text, ".")+1 || p[len(p)-1].Message() != nil || p[len(p)-1].IsList() {
			t.Fatalf("%q is %v", text, p)
		}
	})
}

func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{"order:{req.order_id}", "{metadata.x-y}:{principal}", "{req.a.b}", "{}", "{req}", "{metadata.a-bin}", "a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := grpclock.TemplateSource(text, grpclock.QualifiedField)
		if (s.Read == nil) == (err == nil) {
			t.Fatalf("%q: %v, %v", text, s, err)
		}
		if err != nil && (strings.Contains(err.Error(), "\n") || !utf8.ValidString(err.Error())) {
			t.Fatalf("%q: %q is no sentence", text, err)
		}
	})
}

// A Locker that keeps leases only cannot keep records. A plain lock needs none.
func TestNoSeals_Wiring(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(check.Locker(t, check.LeasesOnly{Backend: backendtest.Memory()}))
	defer func() {
		if text := fmt.Sprint(recover()); !strings.Contains(text, "Sentinel, Redis Cluster, etcd, ZooKeeper") {
			t.Errorf("panic %q does not name the backends that keep records", text)
		}
	}()
	grpclock.LockByKey("order:{req.order_id}", l)
	grpclock.ByMetadata("idempotency-key", l)
}

package grpclock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"

	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
)

func TestWiringPanics(t *testing.T) {
	t.Parallel()
	key := func(context.Context, any) (string, error) { return "", nil }
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
		{"nil key", "pass a function", func() { grpclock.UnaryServerInterceptor(nil) }},
		{"nil locker", "check the error of core.New", func() { grpclock.ByMetadata("k", grpclock.WithLocker(nil)) }},
		{"nil principal", "Principal(nil)", func() { grpclock.ByMetadata("k", grpclock.Principal(nil)) }},
		{"nil RecordIf", "RecordIf(nil)", func() { grpclock.ByMetadata("k", grpclock.RecordIf(nil)) }},
		{"nil Fingerprint", "Fingerprint(nil)", func() { grpclock.ByMetadata("k", grpclock.Fingerprint(nil)) }},
		{"negative wait", "Wait(-1s)", func() { grpclock.ByMetadata("k", grpclock.Wait(-time.Second)) }},
		{"short retention", "Retain(1ms)", func() { grpclock.ByMetadata("k", grpclock.Retain(time.Millisecond)) }},
		{"large MaxBody", "MaxBody", func() { grpclock.ByMetadata("k", grpclock.MaxBody(1<<30)) }},
		{"no space", "name the space", func() { grpclock.ByMetadata("k", grpclock.Space("")) }},
		{"UUID4 of metadata", "UUID4 is for ByField", func() { grpclock.ByMetadata("k", grpclock.UUID4()) }},
		{"LockOnly records nothing", "remove Retain, RecordIf", func() {
			grpclock.ByField("id", grpclock.Retain(time.Hour), grpclock.LockOnly(), grpclock.RecordIf(nil))
		}},
		{"LockOnly has no answer", "remove RetryInFlight, Space", func() {
			grpclock.ByField("id", grpclock.LockOnly(), grpclock.RetryInFlight(), grpclock.Space("s"))
		}},
		{"LockOnly for all methods", "say mode: LOCK_ONLY", func() { grpclock.ByProto(grpclock.LockOnly()) }},
		{"client without a name", "pass the name of metadata", func() { grpclock.UnaryClientInterceptor(grpclock.KeyMetadata("")) }},
		// Rule 30: a stream has no answer to replay.
		{"nil stream key", "pass a function", func() { grpclock.StreamServerInterceptor(nil) }},
		{"stream with replay", "remove Retain", func() { grpclock.StreamServerInterceptor(key, grpclock.Retain(time.Hour)) }},
		{"stream with RecordIf", "LockOnly records nothing", func() {
			grpclock.StreamServerInterceptor(key, grpclock.LockOnly(), grpclock.MaxBody(1))
		}},
		{"stream template of a request", "there is no request yet", func() { grpclock.StreamByKey("{req.id}") }},
		{"bad stream template", "braces must be pairs", func() { grpclock.StreamByKey("{") }},
		{"stream with UUID4", "UUID4 is for ByField", func() { grpclock.StreamByKey("k", grpclock.UUID4()) }},
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

// What the README shows.
func TestContract(t *testing.T) {
	t.Parallel()
	grpc.NewServer(grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key"))).Stop()
	grpc.NewServer(grpc.ChainUnaryInterceptor(grpclock.ByMetadata("idempotency-key", nil), grpclock.ByField("request_id"), grpclock.ByProto(),
		grpclock.ByKey("order:{req.order_id}", grpclock.LockOnly())), grpc.StreamInterceptor(grpclock.StreamByKey("room:{metadata.room}"))).Stop()
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
		if (s == nil) == (err == nil) {
			t.Fatalf("%q: %v, %v", text, s, err)
		}
		if err != nil && (strings.Contains(err.Error(), "\n") || !utf8.ValidString(err.Error())) {
			t.Fatalf("%q: %q is no sentence", text, err)
		}
	})
}

func FuzzUUID4(f *testing.F) {
	for _, seed := range []string{"f81d4fae-7dec-4bd0-a765-00a0c91e6bf6", "F81D4FAE-7DEC-4BD0-A765-00A0C91E6BF6", "", "f81d4fae7dec4bd0a76500a0c91e6bf6"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		key, err := grpclock.UUID4Key(text)
		if err != nil {
			return
		}
		if len(key) != 36 || key != strings.ToLower(text) || key[14] != '4' || strings.IndexFunc(key, unicode.IsControl) >= 0 {
			t.Fatalf("%q made %q", text, key)
		}
	})
}

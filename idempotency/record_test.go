package idempotency_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/idempotency/internal/recordpb"
)

// plain are Claims without options: only their codec is used.
func plain(t testing.TB, opts ...idempotency.Option) *idempotency.Claims {
	t.Helper()
	return idempotency.New(memoryLocker(t), opts...)
}

func TestRecordSurvives(t *testing.T) {
	t.Parallel()
	c := plain(t)
	for name, r := range map[string]*idempotency.Record{
		"empty":     {},
		"tombstone": idempotency.Tombstone(),
		"full": {Status: 201, Body: []byte("\x00body\xff"), Header: map[string][]string{
			"Content-Disposition": {"filename=cl\xe9.txt"}, "Link": {"a", "b"}, "Gone": {},
		}},
	} {
		b, err := c.Encode("n", r, [32]byte{1})
		if err != nil {
			t.Fatal(name, err)
		}
		got, err := c.Decode("n", b)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, r)
		}
	}
}

func TestRecordTooLarge(t *testing.T) {
	t.Parallel()
	for _, r := range []*idempotency.Record{{Body: make([]byte, 16<<20)}, {Status: -1}} {
		if _, err := plain(t).Encode("n", r, [32]byte{}); err == nil {
			t.Error("it was encoded")
		}
	}
}

func TestRecordOfAnotherVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []uint32{0, 3} {
		b, err := proto.Marshal(&recordpb.Record{Version: version, Salt: make([]byte, 16), Payload: make([]byte, 16), Credentials: make([]byte, 16)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := plain(t).Decode("n", b); !errors.Is(err, idempotency.ErrRecord) || !strings.Contains(err.Error(), "version") {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// The record stands in Redis for a day: what it was made of must not be guessed from it.
func TestRecordHidesThePayload(t *testing.T) {
	t.Parallel()
	digest := idempotency.Digest([]byte("7 EUR"))
	c := plain(t)
	a, _ := c.Encode("n", idempotency.Tombstone(), digest)
	b, _ := c.Encode("n", idempotency.Tombstone(), digest)
	if bytes.Equal(a, b) || bytes.Contains(a, digest[:16]) {
		t.Error("equal requests look alike")
	}
}

func FuzzDecode(f *testing.F) {
	readers := []*idempotency.Claims{
		plain(f), plain(f, idempotency.WithCompression(0)), plain(f, idempotency.WithEncryption(secret("a"))),
		plain(f, idempotency.WithEncryption(secret("b"), secret("a")), idempotency.ReadPlain(), idempotency.WithCompression(0)),
	}
	for _, r := range []*idempotency.Record{{}, idempotency.Tombstone(), {Status: 201, Body: bytes.Repeat([]byte("b"), 99), Header: map[string][]string{"A": {"1", "2"}, "B": {}}}} {
		for _, c := range readers {
			b, err := c.Encode("n", r, [32]byte{1})
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
			f.Add(b[:len(b)/2])
		}
	}
	f.Add([]byte("sold out"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for i, c := range readers {
			r, err := c.Decode("n", b)
			if err != nil {
				if r != nil || !errors.Is(err, idempotency.ErrRecord) {
					t.Fatalf("%d: %+v, %v", i, r, err)
				}
				continue
			}
			if r.Status > 1<<30 {
				continue // not ours; replaying it is up to the protocol
			}
			again, err := c.Encode("n", r, [32]byte{})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := c.Decode("n", again); err != nil || !reflect.DeepEqual(got.Header, r.Header) || got.Status != r.Status || !bytes.Equal(got.Body, r.Body) {
				t.Fatalf("%d: %+v became %+v, %v", i, r, got, err)
			}
		}
	})
}

func FuzzTag(f *testing.F) {
	one := idempotency.Fingerprint{Payload: [32]byte{1}}
	readers := []*idempotency.Claims{plain(f), plain(f, idempotency.WithEncryption(secret("a")))}
	for _, c := range readers {
		f.Add(c.NewTag("n", one))
	}
	f.Add("")
	f.Add("idem1..")
	f.Add("idem2.a.")
	f.Fuzz(func(t *testing.T, tag string) {
		for _, c := range readers {
			if _, same := c.TagMatches("n", tag, idempotency.Fingerprint{Payload: [32]byte{2}}); same {
				t.Fatalf("%q matches another fingerprint", tag)
			}
		}
	})
}

func FuzzLockKey(f *testing.F) {
	f.Add("a", "b")
	f.Add("sha256:00", "{a}")
	f.Add("{a}", "b")
	f.Add(strings.Repeat("a", 500), strings.Repeat("a", 501))
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := idempotency.LockKey(a), idempotency.LockKey(b)
		if (a == b) != (x == y) {
			t.Fatalf("%q and %q: %q and %q", a, b, x, y)
		}
		if len(x) > 512 {
			t.Fatalf("%d bytes", len(x))
		}
		if again := idempotency.LockKey(strings.TrimPrefix(x, "claim:")); again == x && x != "claim:"+a {
			t.Fatalf("%q imitates %q", x, a)
		}
	})
}

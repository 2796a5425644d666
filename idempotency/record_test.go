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

func TestRecordSurvives(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*idempotency.Record{
		"empty":     {},
		"tombstone": idempotency.Tombstone(),
		"full": {Status: 201, Body: []byte("\x00body\xff"), Header: map[string][]string{
			"Content-Disposition": {"filename=cl\xe9.txt"}, "Link": {"a", "b"}, "Gone": {},
		}},
	} {
		b, err := idempotency.Encode(r, [32]byte{1})
		if err != nil {
			t.Fatal(name, err)
		}
		got, err := idempotency.Decode(b)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, r)
		}
	}
}

func TestRecordTooLarge(t *testing.T) {
	t.Parallel()
	for _, r := range []*idempotency.Record{{Body: make([]byte, 16<<20)}, {Status: -1}} {
		if _, err := idempotency.Encode(r, [32]byte{}); err == nil {
			t.Error("it was encoded")
		}
	}
}

func TestRecordOfAnotherVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []uint32{0, 2} {
		b, err := proto.Marshal(&recordpb.Record{Version: version, Salt: make([]byte, 16), Payload: make([]byte, 16), Credentials: make([]byte, 16)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := idempotency.Decode(b); !errors.Is(err, idempotency.ErrRecord) || !strings.Contains(err.Error(), "version") {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// The record stands in Redis for a day: what it was made of must not be guessed from it.
func TestRecordHidesThePayload(t *testing.T) {
	t.Parallel()
	digest := idempotency.Digest([]byte("7 EUR"))
	a, _ := idempotency.Encode(idempotency.Tombstone(), digest)
	b, _ := idempotency.Encode(idempotency.Tombstone(), digest)
	if bytes.Equal(a, b) || bytes.Contains(a, digest[:16]) {
		t.Error("equal requests look alike")
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range []*idempotency.Record{{}, idempotency.Tombstone(), {Status: 201, Body: []byte("b"), Header: map[string][]string{"A": {"1", "2"}, "B": {}}}} {
		b, err := idempotency.Encode(r, [32]byte{1})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Add([]byte("sold out"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := idempotency.Decode(b)
		if err != nil {
			if r != nil || !errors.Is(err, idempotency.ErrRecord) {
				t.Fatalf("%+v, %v", r, err)
			}
			return
		}
		again, err := idempotency.Encode(r, [32]byte{})
		if r.Status > 1<<30 {
			return // not ours; replaying it is up to the protocol
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := idempotency.Decode(again); err != nil || !reflect.DeepEqual(got.Header, r.Header) || got.Status != r.Status || !bytes.Equal(got.Body, r.Body) {
			t.Fatalf("%+v became %+v, %v", r, got, err)
		}
	})
}

func FuzzTag(f *testing.F) {
	fp := idempotency.Fingerprint{Payload: [32]byte{1}}
	f.Add(idempotency.NewTag(fp))
	f.Add("")
	f.Add("idem1..")
	f.Fuzz(func(t *testing.T, tag string) {
		_, same := idempotency.TagMatches(tag, idempotency.Fingerprint{Payload: [32]byte{2}})
		if same {
			t.Fatalf("%q matches another fingerprint", tag)
		}
	})
}

func FuzzLockKey(f *testing.F) {
	f.Add("a", "b")
	f.Add("sha256:00", "{a}")
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

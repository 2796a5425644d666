package claim_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/claim/recordpb"
)

func TestRecord_Survives(t *testing.T) {
	t.Parallel()
	c := newClaims(memoryLocker(t))
	for name, r := range map[string]*claim.Record{
		"empty":     {},
		"tombstone": claim.Tombstone(),
		"full": {Status: 201, Body: []byte("\x00body\xff"), Header: map[string][]string{
			"Content-Disposition": {"filename=cl\xe9.txt"}, "Link": {"a", "b"}, "Gone": {},
		}, Run: claim.Run{Begun: time.UnixMilli(1_800_000_000_000), Instance: "shop-1"}},
	} {
		b, err := c.Encode("n", r, [32]byte{1})
		ok(t, name, err)
		got, err := c.Decode("n", b)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, r)
		}
	}
}

func TestRecord_OfAnotherVersion(t *testing.T) {
	t.Parallel()
	c := newClaims(memoryLocker(t))
	for _, version := range []uint32{0, 3} {
		b, err := proto.Marshal(&recordpb.Record{Version: version, Salt: make([]byte, 16), Payload: make([]byte, 16), Credentials: make([]byte, 16)})
		ok(t, "Marshal", err)
		_, err = c.Decode("n", b)
		want(t, "Decode", err, claim.ErrRecord)
		if !strings.Contains(err.Error(), "version") {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// The record stands in the backend for a day: the request must not be guessed from it.
func TestRecord_HidesThePayload(t *testing.T) {
	t.Parallel()
	digest := claim.Digest([]byte("7 EUR"))
	c := newClaims(memoryLocker(t))
	a, _ := c.Encode("n", claim.Tombstone(), digest)
	b, _ := c.Encode("n", claim.Tombstone(), digest)
	if bytes.Equal(a, b) || bytes.Contains(a, digest[:16]) {
		t.Error("equal requests look alike")
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	seen := map[[32]byte][3][]string{}
	for _, c := range [][3][]string{
		{}, {nil, nil, {""}}, {nil, nil, {"a"}}, {{""}, nil}, {nil, {""}}, {{"a"}, nil}, {nil, {"a"}}, {{"a"}, {"a"}}, {{"a", "a"}, nil}, {{"aa"}, nil},
	} {
		d := claim.Credentials(c[0], c[1], c[2])
		if other, ok := seen[d]; ok {
			t.Errorf("%q and %q look alike", c, other)
		}
		seen[d] = c
	}
}

func FuzzDecode(f *testing.F) {
	readers := []*claim.Claims{
		newClaims(memoryLocker(f)), newClaims(memoryLocker(f), encrypted(secret("a"))),
		newClaims(memoryLocker(f), encrypted(secret("b"), secret("a")), readPlain),
	}
	for _, r := range []*claim.Record{{}, claim.Tombstone(), {Status: 201, Body: bytes.Repeat([]byte("b"), 99), Header: map[string][]string{"A": {"1", "2"}, "B": {}}}} {
		for _, c := range readers {
			b, err := c.Encode("n", r, [32]byte{1})
			ok(f, "Encode", err)
			f.Add(b)
			f.Add(b[:len(b)/2])
		}
	}
	f.Add([]byte("sold out"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for i, c := range readers {
			r, err := c.Decode("n", b)
			if err != nil {
				if want(t, "Decode", err, claim.ErrRecord); r != nil {
					t.Fatalf("%d: %+v, %v", i, r, err)
				}
				continue
			}
			if r.Status > 1<<30 {
				continue // not ours; replaying it is up to the protocol
			}
			again, err := c.Encode("n", r, [32]byte{})
			ok(t, "Encode", err)
			if got, err := c.Decode("n", again); err != nil || !reflect.DeepEqual(got.Header, r.Header) || got.Status != r.Status || !bytes.Equal(got.Body, r.Body) {
				t.Fatalf("%d: %+v became %+v, %v", i, r, got, err)
			}
		}
	})
}

func FuzzTag(f *testing.F) {
	one := claim.Fingerprint{Payload: [32]byte{1}}
	readers := []*claim.Claims{newClaims(memoryLocker(f)), newClaims(memoryLocker(f), encrypted(secret("a")))}
	for _, c := range readers {
		f.Add(c.NewTag("n", one, "id"))
	}
	f.Add("")
	f.Add("idem5..")
	f.Add("idem6.a.")
	f.Fuzz(func(t *testing.T, tag string) {
		for _, c := range readers {
			if _, same := c.TagMatches("n", tag, claim.Fingerprint{Payload: [32]byte{2}}); same {
				t.Fatalf("%q matches another fingerprint", tag)
			}
		}
	})
}

func FuzzLockKey(f *testing.F) {
	with, without := memoryLocker(f), memoryLocker(f, core.WithPrefix(""))
	f.Add("a", "b")
	f.Add("sha256:00", "{a}")
	f.Add("{a}", "b")
	f.Add(strings.Repeat("a", 500), strings.Repeat("a", 501))
	f.Add(strings.Repeat("é", 251), "é"+strings.Repeat("é", 251))
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, l := range []*core.Locker{with, without} {
			x, y := claim.LockKey(l, claim.KeyPrefix, a), claim.LockKey(l, claim.KeyPrefix, b)
			step := claim.LockKey(l, claim.StepPrefix, a)
			if (a == b) != (x == y) || x == claim.LockKey(l, claim.StepPrefix, b) {
				t.Fatalf("%q and %q: %q and %q", a, b, x, y)
			}
			if _, err := l.Inspect(t.Context(), step); err != nil {
				t.Fatalf("core refuses %q: %v", step, err)
			}
			if again := claim.LockKey(l, claim.KeyPrefix, strings.TrimPrefix(x, "claim:")); again == x && x != "claim:"+a {
				t.Fatalf("%q imitates %q", x, a)
			}
		}
	})
}

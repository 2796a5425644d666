package claim_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/claim/recordpb"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// secret is an AES-256-GCM key of this name.
func secret(id string) claim.EncryptionKey {
	block, err := aes.NewCipher([]byte(strings.Repeat(id, 32)[:32]))
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return claim.EncryptionKey{ID: id, AEAD: aead}
}

func encrypted(keys ...claim.EncryptionKey) change {
	return func(s *claim.Settings) { s.Keys = keys }
}

// Neither the answer nor the request can be read in the backend.
func TestEncryption_UnreadableAtRest(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	stored := func(key string) string {
		s, err := n.Client().Get(context.Background(), "onelane:{claim:"+key+"}").Result()
		ok(t, "GET", err)
		return s
	}
	const body, payload = "card 4711 was charged", "7 EUR"
	answer := &claim.Record{Status: 201, Body: []byte(body), Header: map[string][]string{"Location": {"/cards/4711"}}}
	reader := newClaims(lockerOn(t, n)) // knows the payload, can read Redis, and has no key
	for name, c := range map[string]*claim.Claims{
		"plain":     reader,
		"encrypted": newClaims(lockerOn(t, n), encrypted(secret("a"))),
	} {
		readable := name == "plain"
		out, err := c.Begin(t.Context(), claim.Request{Key: name, Fingerprint: fp(payload), ID: "request-7"})
		ok(t, "Begin", err)
		while := stored(name)
		_, tag, _ := strings.Cut(while, "#")
		if ours, _ := reader.TagMatches("claim:"+name, tag, fp(payload)); ours != readable {
			t.Errorf("%s: the fingerprint in %q is readable: %v", name, while, ours)
		}
		ok(t, "Complete", out.Claim.Complete(answer))
		out.Claim.Close()
		after := stored(name)
		for _, text := range []string{"4711", "charged", "Location", "request-7"} {
			if strings.Contains(after, text) != readable {
				t.Errorf("%s: %q is in %q: %v", name, text, after, !readable)
			}
		}
		replay(t, c, name, fp(payload), body)
		refused(t, c, name, fp("8 EUR"), claim.ErrMismatch)
	}
	refused(t, reader, "encrypted", fp(payload), claim.ErrRecord)
}

// A process with the key sees a mismatch of a running or unknown request; one without cannot, and never
// adopts what it cannot read.
func TestEncryption_UnreadableTag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := memoryLocker(t)
		c := newClaims(l, encrypted(secret("a")))
		k := begin(t, c, "k", fp("a"))
		all := map[string]struct {
			c        *claim.Claims
			readable bool
		}{
			"the same key":        {newClaims(l, encrypted(secret("a")), recovers), true},
			"as an older key":     {newClaims(l, encrypted(secret("b"), secret("a")), recovers), true},
			"another key":         {newClaims(l, encrypted(secret("b")), recovers, runAgain), false},
			"another of the name": {newClaims(l, encrypted(claim.EncryptionKey{ID: "a", AEAD: secret("b").AEAD}), recovers), false},
			"no key":              {newClaims(l, recovers, runAgain), false},
		}
		for name, tc := range all {
			target := claim.ErrInFlight
			if tc.readable {
				target = claim.ErrMismatch
			}
			t.Log(name)
			refused(t, tc.c, "k", fp("b"), target)
		}
		k.LeaveUnknown()
		time.Sleep(time.Minute)
		for name, tc := range all {
			t.Log(name)
			if tc.readable {
				refused(t, tc.c, "k", fp("b"), claim.ErrMismatch)
			} else {
				refused(t, tc.c, "k", fp("a"), claim.ErrUnknown)
			}
		}
		adopted := begin(t, all["as an older key"].c, "k", fp("a"))
		complete(t, adopted, "told")
		replay(t, newClaims(l, encrypted(secret("b"))), "k", fp("a"), "told")
	})
}

// While encryption is being turned on, ReadPlain reads tags and records from before.
func TestEncryption_ReadPlain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := memoryLocker(t)
		plain, strict := newClaims(l), newClaims(l, encrypted(secret("a")), recovers)
		migrating := newClaims(l, encrypted(secret("a")), readPlain, recovers)
		complete(t, begin(t, plain, "done", fp("a")), "done")
		refused(t, strict, "done", fp("a"), claim.ErrRecord)
		replay(t, migrating, "done", fp("a"), "done")
		leave(t, plain, "unknown", fp("a"))
		time.Sleep(time.Minute)
		refused(t, strict, "unknown", fp("a"), claim.ErrUnknown)
		refused(t, migrating, "unknown", fp("b"), claim.ErrMismatch)
		free(t, begin(t, migrating, "unknown", fp("a")))
	})
}

func TestEncryption_Rotation(t *testing.T) {
	t.Parallel()
	l := memoryLocker(t)
	with := func(keys ...claim.EncryptionKey) *claim.Claims { return newClaims(l, encrypted(keys...)) }
	a, ab, ba, b := with(secret("a")), with(secret("a"), secret("b")), with(secret("b"), secret("a")), with(secret("b"))
	for key, c := range map[string]*claim.Claims{"by-a": a, "by-ab": ab, "by-ba": ba} {
		complete(t, begin(t, c, key, fp("p")), key)
	}
	for _, c := range []*claim.Claims{ab, ba} {
		for _, key := range []string{"by-a", "by-ab", "by-ba"} {
			replay(t, c, key, fp("p"), key)
		}
	}
	replay(t, b, "by-ba", fp("p"), "by-ba")
	refused(t, b, "by-ab", fp("p"), claim.ErrRecord)
}

// Forged records: one without encryption, moved ones, changed ones.
func TestEncryption_ForgedRecords(t *testing.T) {
	t.Parallel()
	b := backendtest.Memory()
	l := newLocker(t, b)
	c := newClaims(l, encrypted(secret("a")))
	good, err := c.Encode("claim:k", record(strings.Repeat("paid ", 50)), [32]byte{1})
	ok(t, "Encode", err)
	_, err = c.Decode("claim:k", good)
	ok(t, "Decode", err)
	change := func(fn func(*recordpb.Record)) []byte {
		var p recordpb.Record
		ok(t, "Unmarshal", proto.Unmarshal(good, &p))
		fn(&p)
		b, err := proto.Marshal(&p)
		ok(t, "Marshal", err)
		return b
	}
	forged, _ := newClaims(l).Encode("claim:k", record("forged"), [32]byte{1})
	for name, b := range map[string][]byte{
		"plain": forged, "moved": good,
		"changed":          change(func(p *recordpb.Record) { p.Content[20] ^= 1 }),
		"another nonce":    change(func(p *recordpb.Record) { p.Content[0] ^= 1 }),
		"cut off":          change(func(p *recordpb.Record) { p.Content = p.Content[:5] }),
		"empty":            change(func(p *recordpb.Record) { p.Content = nil }),
		"of no key":        change(func(p *recordpb.Record) { p.KeyId = "" }),
		"of another key":   change(func(p *recordpb.Record) { p.KeyId = "b" }),
		"a tag as content": change(func(p *recordpb.Record) { p.Content = []byte(c.NewTag("claim:k", fp("a"), "")) }),
	} {
		at := "claim:k"
		if name == "moved" {
			at = "claim:j"
		}
		if r, err := c.Decode(at, b); err == nil {
			t.Errorf("%s: %+v", name, r)
		} else {
			want(t, name, err, claim.ErrRecord)
		}
	}
	elsewhere := newClaims(newLocker(t, b, core.WithPrefix("other:")), encrypted(secret("a")))
	_, err = elsewhere.Decode("claim:k", good)
	want(t, "a record of another prefix", err, claim.ErrRecord)
	tag := c.NewTag("claim:k", fp("a"), "")
	for name, moved := range map[string]struct {
		c    *claim.Claims
		name string
	}{"another key": {c, "claim:j"}, "another prefix": {elsewhere, "claim:k"}, "a step": {c, "claimstep:k"}} {
		if ours, _ := moved.c.TagMatches(moved.name, tag, fp("a")); ours {
			t.Errorf("a tag of %s was read", name)
		}
	}
	_, err = newClaims(l, encrypted(secret("a")), readPlain).Decode("claim:k", forged)
	ok(t, "ReadPlain", err)
}

// wide adds as much as an AEAD may: 24 bytes of nonce and 24 of tag.
type wide struct{ cipher.AEAD }

func (wide) NonceSize() int { return 24 }
func (wide) Overhead() int  { return 24 }
func (w wide) Seal(dst, nonce, plain, bound []byte) []byte {
	return append(w.AEAD.Seal(dst, nonce[:12], plain, bound), "01234567"...)
}
func (w wide) Open(dst, nonce, sealed, bound []byte) ([]byte, error) {
	return w.AEAD.Open(dst, nonce[:12], sealed[:len(sealed)-8], bound)
}

func TestEncryption_LargestTag(t *testing.T) {
	t.Parallel()
	c := newClaims(testutil.Locker(t), encrypted(claim.EncryptionKey{ID: strings.Repeat("k", 32), AEAD: wide{secret("a").AEAD}}))
	if tag := c.NewTag("n", fp("a"), strings.Repeat("r", 99)); len(tag) > 256 {
		t.Errorf("the tag has %d bytes", len(tag))
	}
	out, err := c.Begin(t.Context(), claim.Request{Key: strings.Repeat("x", 2000), ID: strings.Repeat("r", 99), Fingerprint: fp("a")})
	ok(t, "Begin", err)
	refused(t, c, strings.Repeat("x", 2000), fp("b"), claim.ErrMismatch)
	complete(t, out.Claim, "done")
	replay(t, c, strings.Repeat("x", 2000), fp("a"), "done")
}

// An AEAD that chooses its nonces itself works as well.
func TestEncryption_RandomNonceAEAD(t *testing.T) {
	t.Parallel()
	block, err := aes.NewCipher(make([]byte, 16))
	ok(t, "NewCipher", err)
	aead, err := cipher.NewGCMWithRandomNonce(block)
	ok(t, "NewGCM", err)
	c := newClaims(memoryLocker(t), encrypted(claim.EncryptionKey{ID: "r", AEAD: aead}))
	complete(t, begin(t, c, "k", fp("a")), "done")
	replay(t, c, "k", fp("a"), "done")
}

package idempotency_test

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/idempotency/internal/recordpb"
	"github.com/onelane/onelane/testutil"
)

// claimsOn returns Claims on a node, with a Locker of their own.
func claimsOn(t testing.TB, n *testutil.Node, opts ...idempotency.Option) *idempotency.Claims {
	t.Helper()
	return idempotency.New(lockerOn(t, n), opts...)
}

// stored is what Redis has under the claim's lock, byte for byte.
func stored(t testing.TB, n *testutil.Node, key string) string {
	t.Helper()
	s, err := n.Client().Get(context.Background(), "onelane:{claim:"+key+"}").Result()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What is at rest in Redis cannot be read: neither the answer, nor what the request was, while it runs and after it.
func TestEncryption_UnreadableAtRest(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	const body, payload = "card 4711 was charged", "7 EUR"
	answer := &idempotency.Record{Status: 201, Body: []byte(body), Header: map[string][]string{"Location": {"/cards/4711"}}}
	reader := claimsOn(t, n) // somebody who knows the payload and can read Redis, and has no key
	for name, c := range map[string]*idempotency.Claims{
		"plain":                claimsOn(t, n),
		"encrypted":            claimsOn(t, n, idempotency.WithEncryption(secret("a"))),
		"compressed-encrypted": claimsOn(t, n, idempotency.WithEncryption(secret("a")), idempotency.WithCompression(0)),
	} {
		readable := name == "plain"
		claim := begin(t, c, name, fp(payload))
		while := stored(t, n, name)
		_, tag, _ := strings.Cut(while, "#")
		if ours, _ := reader.TagMatches("claim:"+name, tag, fp(payload)); ours != readable {
			t.Errorf("%s: the fingerprint in %q is readable: %v", name, while, ours)
		}
		if err := claim.Complete(t.Context(), answer); err != nil {
			t.Fatal(err)
		}
		after := stored(t, n, name)
		for _, text := range []string{"4711", "charged", "Location"} {
			if strings.Contains(after, text) != readable {
				t.Errorf("%s: %q is in %q: %v", name, text, after, !readable)
			}
		}
		replay(t, c, name, fp(payload), body)
		var mismatch *idempotency.MismatchError
		if _, err := c.Begin(t.Context(), name, fp("8 EUR")); !errors.As(err, &mismatch) {
			t.Errorf("%s: another payload: %v", name, err)
		}
	}
	if _, err := reader.Begin(t.Context(), "encrypted", fp(payload)); !errors.Is(err, idempotency.ErrRecord) || !strings.Contains(err.Error(), `key "a"`) {
		t.Errorf("without the key: %v", err)
	}
}

func lockerOn(t testing.TB, n *testutil.Node, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(redisbackend.New(n.Client()), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// While an encrypted claim runs, who has the key sees a mismatch, and who has none is told that it runs.
func TestEncryption_MismatchWhileItRuns(t *testing.T) {
	t.Parallel()
	l := memoryLocker(t)
	c := idempotency.New(l, idempotency.WithEncryption(secret("a")))
	claim := begin(t, c, "k", fp("a"))
	for _, tc := range []struct {
		name string
		c    *idempotency.Claims
		want error
	}{
		{"the same key", c, idempotency.ErrMismatch},
		{"as an older key", idempotency.New(l, idempotency.WithEncryption(secret("b"), secret("a"))), idempotency.ErrMismatch},
		{"another key", idempotency.New(l, idempotency.WithEncryption(secret("b"))), idempotency.ErrInFlight},
		{"no key", idempotency.New(l), idempotency.ErrInFlight},
	} {
		if _, err := tc.c.Begin(t.Context(), "k", fp("b")); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	_ = claim.Abandon(t.Context())
}

// Old records are read as long as their key is known, and new ones are written with the current key.
func TestEncryption_Rotation(t *testing.T) {
	t.Parallel()
	l := memoryLocker(t)
	with := func(keys ...idempotency.EncryptionKey) *idempotency.Claims {
		return idempotency.New(l, idempotency.WithEncryption(keys[0], keys[1:]...))
	}
	a, ab, ba, b := with(secret("a")), with(secret("a"), secret("b")), with(secret("b"), secret("a")), with(secret("b"))
	for key, c := range map[string]*idempotency.Claims{"by-a": a, "by-ab": ab, "by-ba": ba} {
		if err := begin(t, c, key, fp("p")).Complete(t.Context(), record(key)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []*idempotency.Claims{ab, ba} {
		for _, key := range []string{"by-a", "by-ab", "by-ba"} {
			replay(t, c, key, fp("p"), key)
		}
	}
	replay(t, b, "by-ba", fp("p"), "by-ba")
	if _, err := b.Begin(t.Context(), "by-ab", fp("p")); !errors.Is(err, idempotency.ErrRecord) {
		t.Errorf("a record of a key that was removed: %v", err)
	}
}

// Forged records: one without encryption, one moved to another key, one that was changed, one cut off.
func TestEncryption_ForgedRecords(t *testing.T) {
	t.Parallel()
	c := plain(t, idempotency.WithEncryption(secret("a")), idempotency.WithCompression(0))
	good, err := c.Encode("claim:k", record(strings.Repeat("paid ", 50)), [32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Decode("claim:k", good); err != nil {
		t.Fatal(err)
	}
	change := func(fn func(*recordpb.Record)) []byte {
		var p recordpb.Record
		if err := proto.Unmarshal(good, &p); err != nil {
			t.Fatal(err)
		}
		fn(&p)
		b, err := proto.Marshal(&p)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	forged, _ := plain(t).Encode("claim:k", record("forged"), [32]byte{1})
	envelope, _ := plain(t, idempotency.WithCompression(0)).Encode("claim:k", record(strings.Repeat("x", 99)), [32]byte{1})
	for name, b := range map[string][]byte{
		"plain": forged, "plain envelope": envelope, "moved": good,
		"changed":          change(func(p *recordpb.Record) { p.Content[20] ^= 1 }),
		"another nonce":    change(func(p *recordpb.Record) { p.Content[0] ^= 1 }),
		"cut off":          change(func(p *recordpb.Record) { p.Content = p.Content[:5] }),
		"empty":            change(func(p *recordpb.Record) { p.Content = nil }),
		"not compressed":   change(func(p *recordpb.Record) { p.Deflated = false }),
		"of no key":        change(func(p *recordpb.Record) { p.KeyId = "" }),
		"of an other key":  change(func(p *recordpb.Record) { p.KeyId = "b" }),
		"a tag as content": change(func(p *recordpb.Record) { p.Content = []byte(c.NewTag("claim:k", fp("a"))) }),
	} {
		at := "claim:k"
		if name == "moved" {
			at = "claim:j"
		}
		if r, err := c.Decode(at, b); !errors.Is(err, idempotency.ErrRecord) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	migrating := plain(t, idempotency.WithEncryption(secret("a")), idempotency.ReadPlain())
	for _, b := range [][]byte{forged, envelope} {
		if _, err := migrating.Decode("claim:k", b); err != nil {
			t.Errorf("ReadPlain: %v", err)
		}
	}
}

// An AEAD that chooses its nonces itself works as well.
func TestEncryption_RandomNonceAEAD(t *testing.T) {
	t.Parallel()
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}
	c := plain(t, idempotency.WithEncryption(idempotency.EncryptionKey{ID: "r", AEAD: aead}))
	if err := begin(t, c, "k", fp("a")).Complete(t.Context(), record("done")); err != nil {
		t.Fatal(err)
	}
	replay(t, c, "k", fp("a"), "done")
}

func TestCompression(t *testing.T) {
	t.Parallel()
	c := plain(t, idempotency.WithCompression(1000))
	for _, tc := range []struct {
		name    string
		body    []byte
		smaller bool
	}{
		{"small", bytes.Repeat([]byte("a"), 500), false},
		{"large", bytes.Repeat([]byte("a"), 1<<20), true},
		{"large and random", []byte(secretNoise(4000)), false},
	} {
		r := &idempotency.Record{Status: 200, Body: tc.body}
		b, err := c.Encode("n", r, [32]byte{1})
		if err != nil {
			t.Fatal(err)
		}
		if smaller := len(b) < len(tc.body)/2; smaller != tc.smaller {
			t.Errorf("%s: %d bytes became %d", tc.name, len(tc.body), len(b))
		}
		if got, err := plain(t).Decode("n", b); err != nil || !bytes.Equal(got.Body, tc.body) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func secretNoise(n int) string {
	k := secret("a")
	return string(k.AEAD.Seal(nil, make([]byte, k.AEAD.NonceSize()), make([]byte, n), nil))
}

// A value of a few hundred kilobytes that says it is much more must not fill the memory. Not parallel: it looks at what
// the process allocates.
func TestCompression_Bomb(t *testing.T) {
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	for range 128 {
		_, _ = w.Write(chunk)
	}
	_ = w.Close()
	bomb, err := proto.Marshal(&recordpb.Record{Version: 2, Deflated: true, Content: b.Bytes()})
	if err != nil {
		t.Fatal(err)
	}
	c := plain(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = c.Decode("n", bomb)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, idempotency.ErrRecord) || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%d bytes: %v", len(bomb), err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 160<<20 {
		t.Errorf("%d bytes took %d MiB", len(bomb), took>>20)
	}
}

// Without RunUnreadable what cannot be read refuses; with it one request runs anew, and its record stays.
func TestRunUnreadable(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n)
	k, err := l.Acquire(t.Context(), "claim:k")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Seal(t.Context(), []byte("of a later version"), time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := idempotency.New(l).Begin(t.Context(), "k", fp("a")); !errors.Is(err, idempotency.ErrRecord) {
		t.Fatalf("by default: %v", err)
	}
	var claims atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		c := claimsOn(t, n, idempotency.RunUnreadable())
		for range 8 {
			all.Go(func() {
				out, err := c.Begin(t.Context(), "k", fp("a"))
				switch {
				case errors.Is(err, idempotency.ErrInFlight):
				case err != nil:
					t.Error(err)
				case out.Claim != nil:
					claims.Add(1)
					if err := out.Claim.Complete(t.Context(), record("done")); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	if n := claims.Load(); n != 1 {
		t.Errorf("%d claims", n)
	}
	replay(t, idempotency.New(l), "k", fp("a"), "done")
}

// between runs fn before the first Unseal.
type between struct {
	core.Backend
	once sync.Once
	fn   func()
}

// Open implements core.Opener.
func (b *between) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b *between) Unseal(ctx context.Context, key string) error {
	b.once.Do(b.fn)
	return b.Backend.Unseal(ctx, key)
}

// Two who meet the same unreadable record: the slower one must not remove what the faster one recorded meanwhile.
func TestRunUnreadable_OneAtATime(t *testing.T) {
	t.Parallel()
	memory := testutil.Memory()
	slow := &between{Backend: memory}
	locker := func(b core.Opener) *core.Locker {
		l, err := core.New(b)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	a, b := locker(slow), locker(memory)
	k, err := b.Acquire(t.Context(), "claim:k")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Seal(t.Context(), []byte("of a later version"), time.Minute); err != nil {
		t.Fatal(err)
	}
	runs := 0
	run := func(l *core.Locker) {
		out, err := idempotency.New(l, idempotency.RunUnreadable()).Begin(t.Context(), "k", fp("a"))
		if err == nil && out.Claim != nil {
			runs++
			err = out.Claim.Complete(t.Context(), record("done"))
		}
		if err != nil && !errors.Is(err, idempotency.ErrInFlight) {
			t.Error(err)
		}
	}
	slow.fn = func() { run(b) }
	run(a)
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
	replay(t, idempotency.New(b), "k", fp("a"), "done")
}

// stubborn keeps what is sealed, as a process of a later version that writes it again does.
type stubborn struct {
	core.Backend
	asked int
}

// Open implements core.Opener.
func (s *stubborn) Open(core.Environment) (core.Backend, error) { return s, nil }

func (s *stubborn) Unseal(context.Context, string) error { s.asked++; return nil }

// What comes back after it was removed is an error, and no reason to remove it for ever.
func TestRunUnreadable_ComesBack(t *testing.T) {
	t.Parallel()
	backend := &stubborn{Backend: testutil.Memory()}
	l, err := core.New(backend)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	k, err := l.Acquire(t.Context(), "claim:k")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Seal(t.Context(), []byte("of a later version"), time.Minute); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := idempotency.New(l, idempotency.RunUnreadable()).Begin(ctx, "k", fp("a")); !errors.Is(err, idempotency.ErrRecord) || backend.asked != 1 {
		t.Errorf("%v after %d", err, backend.asked)
	}
}

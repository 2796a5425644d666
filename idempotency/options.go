package idempotency

import (
	"crypto/cipher"
	"fmt"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
)

const (
	defaultRetention = 24 * time.Hour
	minRetention     = 10 * time.Millisecond
	maxKeyID         = 32
	maxTransport     = 8
	maxOverhead      = 96 // of an AEAD, nonce included: an encrypted tag must stay within the 256 bytes that core takes
)

// Option configures [Claims]. A nil Option is ignored, the later of two wins. One with an impossible value panics where
// it is made, since that is a mistake in the program.
type Option interface{ apply(*Claims) }

type option func(*Claims)

func (o option) apply(c *Claims) { o(c) }

// WithRetention sets how long a record is kept: after that its key runs anew. Default 24 h, at least 10 ms.
func WithRetention(d time.Duration) Option {
	must(d >= minRetention, "WithRetention(%v): records must be kept for at least %v", d, minRetention)
	return option(func(c *Claims) { c.retention = d })
}

// WithWait makes Begin wait for a running request for up to d, and answer from its record. By default it does not
// wait.
func WithWait(d time.Duration) Option {
	must(d >= 0, "WithWait(%v): leave it away not to wait", d)
	return option(func(c *Claims) { c.wait = d })
}

// WithFailOpen makes Begin answer [Outcome.Unprotected] instead of an error when the backend is not available: the
// request may run a second time, or beside another. One whose context has ended meanwhile does not run. By default it
// fails closed.
func WithFailOpen() Option { return option(func(c *Claims) { c.failOpen = true }) }

// WithTransport sets what the requests come by, in one word of up to 8 lower-case letters: "http" or "grpc". It is the
// value of the attribute onelane.transport of metrics and spans, and what tells two requests with one key apart that
// came by different ones: see [MismatchError]. By default there is none.
func WithTransport(name string) Option {
	must(name == "" || validTransport(name), "WithTransport(%q): pass up to %d lower-case letters", name, maxTransport)
	return option(func(c *Claims) { c.transport = name })
}

func validTransport(name string) bool {
	return name != "" && len(name) <= maxTransport && strings.IndexFunc(name, func(r rune) bool { return r < 'a' || r > 'z' }) < 0
}

// WithCompression compresses records of more than n bytes before they are stored (RFC 1951), where that makes them
// smaller. By default nothing is compressed. Records are read in either form, whatever this option says, but not by
// versions of this package that do not know it.
//
// Together with [WithEncryption] the length of a record tells something about what is in it: leave compression away
// where an attacker chooses part of an answer that holds a secret.
func WithCompression(n int) Option {
	must(n >= 0, "WithCompression(%d): pass the size above which records are compressed", n)
	return option(func(c *Claims) { c.compressAbove = n })
}

// EncryptionKey is a key that records are encrypted with.
type EncryptionKey struct {
	// ID names the key in each record, in 1 to 32 letters, digits, "-" and "_". It is not secret.
	ID string
	// AEAD encrypts, for example [cipher.NewGCM] of AES. Nonces are random: with the 96 bits of GCM, take a new key
	// after 2^32 records (NIST SP 800-38D, 8.3). It must be safe for concurrent use, as those of the standard library are.
	AEAD cipher.AEAD
}

// WithEncryption encrypts records, and the fingerprint of a request while it runs: whoever can read the backend
// cannot read them, and whoever can write there cannot forge a record or move one to another key. The names of keys
// stay readable.
//
// New records are encrypted with current; older keys are for reading only. To change the key, let all processes know
// the new one as an older key first, then make it the current one, and remove the old one after the retention. A
// record of an unknown key, and one that is not encrypted, is an error that matches [ErrRecord]; see [ReadPlain].
func WithEncryption(current EncryptionKey, older ...EncryptionKey) Option {
	keys := append([]EncryptionKey{current}, older...)
	seen := make(map[string]bool)
	for _, k := range keys {
		must(validKeyID(k.ID), "WithEncryption: the ID of a key, %q, must be 1 to %d letters, digits, \"-\" and \"_\"", k.ID, maxKeyID)
		must(k.AEAD != nil, "WithEncryption: key %q has no AEAD", k.ID)
		adds := k.AEAD.NonceSize() + k.AEAD.Overhead()
		must(adds <= maxOverhead, "WithEncryption: the AEAD of key %q adds %d bytes, at most %d are allowed", k.ID, adds, maxOverhead)
		must(!seen[k.ID], "WithEncryption: there are two keys %q: name each differently", k.ID)
		seen[k.ID] = true
	}
	return option(func(c *Claims) { c.keys = keys })
}

func validKeyID(id string) bool {
	return id != "" && len(id) <= maxKeyID && strings.IndexFunc(id, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && r != '-' && r != '_'
	}) < 0
}

// ReadPlain lets Claims with [WithEncryption] read records that are not encrypted, for the time in which encryption is
// switched on: until all processes have it, and then for the retention. As long as it is set whoever can write to the
// backend can forge records. Without WithEncryption it does nothing.
func ReadPlain() Option { return option(func(c *Claims) { c.readPlain = true }) }

// RunUnreadable removes a record that cannot be read (it is corrupt, of an unknown version, or of an unknown key) and
// gives out a claim, so that the request runs again. By default that is an error that matches [ErrRecord], and nothing
// runs: use it where running twice does less harm than not running. Not while processes of two versions or with two
// sets of keys are up: each would throw away what the other wrote.
func RunUnreadable() Option { return option(func(c *Claims) { c.runUnreadable = true }) }

// New returns Claims on l. It reports to l's logger and to its providers of metrics and spans. It panics if l is nil.
func New(l *core.Locker, opts ...Option) *Claims {
	must(l != nil, "New needs a core.Locker: pass the one that core.New returned, after checking its error")
	c := &Claims{locker: l, retention: defaultRetention, compressAbove: -1}
	for _, o := range opts {
		if o != nil {
			o.apply(c)
		}
	}
	c.instruments = newInstruments(l, c.transport)
	return c
}

// must panics with a sentence about a mistake in the program.
func must(ok bool, format string, args ...any) {
	if !ok {
		panic("idempotency: " + fmt.Sprintf(format, args...))
	}
}

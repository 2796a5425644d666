package grpclock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

const (
	defaultRetention = 24 * time.Hour
	defaultMaxBody   = 1 << 20
	largestMaxBody   = 8 << 20
	minRetention     = 10 * time.Millisecond
)

// Option configures an interceptor of a server. A nil Option is ignored, the later of two wins.
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

// config is what an interceptor goes by.
type config struct {
	locker        *core.Locker
	lockOnly      bool
	wait          time.Duration
	require       bool
	failOpen      bool
	principal     func(context.Context) string
	uuid4         bool
	retention     time.Duration
	recordIf      func(codes.Code) bool
	maxBody       int
	retryInFlight bool
	fingerprint   func(context.Context, proto.Message) []byte
	space         string
	records       []idempotency.Option

	recording []string // options that were used and mean nothing with LockOnly
	mistakes  []string
}

// LockOnly records nothing: it holds a lock while the handler runs, so that there is one call at a time per key. While
// it is taken a call gets Aborted with LOCK_BUSY, or waits, with [Wait]. It covers methods without side effects too.
func LockOnly() Option { return option(func(c *config) { c.lockOnly = true }) }

// Wait makes a call wait for up to d for the one that runs with its key: for its answer, or, with [LockOnly], for the
// lock. A wait for a lock also bridges an outage of Redis of up to 10 s, unless [FailOpen] is set. By default a call
// does not wait.
func Wait(d time.Duration) Option {
	return option(func(c *config) {
		c.wait = d
		c.check(d >= 0, "Wait(%v): leave it away not to wait", d)
	})
}

// Require refuses calls without a key: InvalidArgument with IDEMPOTENCY_KEY_MISSING. By default they run unprotected.
func Require() Option { return option(func(c *config) { c.require = true }) }

// FailOpen runs calls unprotected when Redis is not available, and logs each; not those whose client is gone, or whose
// deadline has passed. By default they are Unavailable with LOCK_UNAVAILABLE.
func FailOpen() Option { return option(func(c *config) { c.failOpen = true }) }

// WithLocker sets the Locker. Default: the one passed to [core.SetDefault].
func WithLocker(l *core.Locker) Option {
	return option(func(c *config) {
		c.locker = l
		c.check(l != nil, "WithLocker(nil): check the error of core.New first, or leave the option away for core.SetDefault")
	})
}

// Principal sets who calls: a name that is stable over retries and is verified, such as a user or tenant id; keys of
// different principals have nothing to do with each other. "" is an anonymous caller, see the package's text. Default:
// the name in the client's verified TLS certificate.
//
// With [LockOnly] leave it away, unless you want a lock for each: all callers exclude each other by default, and with
// Principal two callers may be at work on one resource at the same time, since the name of the lock ends with the
// caller's ("order:42:ann"). Where each should have a lock, {principal} in the template of [ByKey] says so openly.
func Principal(fn func(context.Context) string) Option {
	return option(func(c *config) {
		c.principal = fn
		c.check(fn != nil, "Principal(nil): pass a function, or leave it away")
	})
}

// UUID4 makes [ByField] refuse a key that is no UUID of version 4 in its text form, as AIP-155 asks of request_id:
// InvalidArgument with IDEMPOTENCY_KEY_INVALID. Upper and lower case are the same key.
func UUID4() Option { return option(func(c *config) { c.uuid4 = true }) }

// Retain sets how long an answer is kept: after that its key runs anew. Default 24 h, at least 10 ms.
func Retain(d time.Duration) Option {
	return recording("Retain", func(c *config) {
		c.retention = d
		c.check(d >= minRetention, "Retain(%v): keep answers for at least %v", d, minRetention)
	})
}

// RecordIf sets which codes are recorded; after the others a retry runs again. Unauthenticated, and codes that gRPC
// does not define, never are. Default: OK, InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, OutOfRange
// and PermissionDenied.
func RecordIf(fn func(codes.Code) bool) Option {
	return recording("RecordIf", func(c *config) {
		c.recordIf = fn
		c.check(fn != nil, "RecordIf(nil): pass a function, or leave it away")
	})
}

// RetryInFlight answers a retry that comes while the first call runs with Unavailable instead of Aborted: the code that
// retry policies usually name, so that gRPC's own retries go on until there is an answer.
func RetryInFlight() Option {
	return recording("RetryInFlight", func(c *config) { c.retryInFlight = true })
}

// MaxBody sets up to how many bytes of an answer are recorded, metadata included. A larger one is sent in full, and a
// retry gets FailedPrecondition with IDEMPOTENCY_RESPONSE_NOT_KEPT. Default 1 MiB, at most 8 MiB.
func MaxBody(n int) Option {
	return recording("MaxBody", func(c *config) {
		c.maxBody = n
		c.check(n >= 0 && n <= largestMaxBody, "MaxBody(%d): it must be from 0 to 8 MiB", n)
	})
}

// Fingerprint sets what a retry must repeat: the bytes that fn returns, which are stored as a salted hash. fn must not
// modify the request. Default: all fields of the request, those that this process does not know included.
func Fingerprint(fn func(context.Context, proto.Message) []byte) Option {
	return recording("Fingerprint", func(c *config) {
		c.fingerprint = fn
		c.check(fn != nil, "Fingerprint(nil): pass a function, or leave it away")
	})
}

// Space puts keys into a space of this name, which all interceptors and middlewares (ginlock has the same option) share
// that name it, have the same Locker and say the same of who calls. By default a key belongs to one method and one place, and
// the same text elsewhere is another key. In a space it names one request: a retry that comes over HTTP after the
// first came by gRPC is recognised, and refused with the code idempotency_other_transport, and the other way round with
// IDEMPOTENCY_OTHER_TRANSPORT: nothing runs twice, and no answer is put into a form that nobody asked for. Used with
// another method or route it is a reused key.
func Space(name string) Option {
	return recording("Space", func(c *config) {
		c.space = name
		c.check(name != "", `Space(""): name the space, or leave it away`)
	})
}

// Records sets how answers are stored: [idempotency.WithEncryption], [idempotency.WithCompression],
// [idempotency.RunUnreadable]. What has an option of its own here, such as [Retain], is set by that.
func Records(opts ...idempotency.Option) Option {
	return recording("Records", func(c *config) { c.records = append(c.records, opts...) })
}

// recording is an option that means nothing with LockOnly.
func recording(name string, apply func(*config)) Option {
	return option(func(c *config) {
		c.recording = append(c.recording, name)
		apply(c)
	})
}

func (c *config) check(ok bool, format string, args ...any) {
	if !ok {
		c.mistakes = append(c.mistakes, fmt.Sprintf("grpclock: "+format, args...))
	}
}

// newConfig panics, at wiring, when an option is wrong.
func newConfig(opts []Option) config {
	c := config{retention: defaultRetention, recordIf: recordByDefault, maxBody: defaultMaxBody}
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	if c.lockOnly {
		c.check(len(c.recording) == 0, "LockOnly records nothing: remove %s", strings.Join(slices.Compact(c.recording), ", "))
	}
	if len(c.mistakes) > 0 {
		panic(strings.Join(c.mistakes, "; "))
	}
	return c
}

// recordByDefault leaves out what says nothing about the request itself: try again, log in, slow down.
func recordByDefault(code codes.Code) bool {
	switch code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition,
		codes.OutOfRange, codes.PermissionDenied:
		return true
	}
	return false
}

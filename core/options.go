package core

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

const (
	defaultTTL     = 10 * time.Second
	defaultMaxHold = 15 * time.Minute
	defaultPrefix  = "onelane:"
	minTTL         = 10 * time.Millisecond
	maxDuration    = 10 * 365 * 24 * time.Hour // what is added to a time stays one
	maxInstance    = 128
	maxTag         = 256
)

// Option configures a [Locker]. A nil Option is ignored, the later of two wins.
type Option interface{ applyLocker(*config) }

// AcquireOption configures one call of [Locker.Acquire] and its like. A nil one is ignored, the later of two wins.
type AcquireOption interface{ applyAcquire(*settings) }

// LockOption is both: a default when it is passed to [New], and a choice for one call.
type LockOption interface {
	Option
	AcquireOption
}

// settings are what one acquisition goes by.
type settings struct {
	ttl     time.Duration
	wait    time.Duration // 0: until ctx ends
	maxHold time.Duration
	tag     string
	noRenew bool

	sealMemory time.Duration
}

type config struct {
	settings
	prefix      string
	instance    string
	nodeTimeout time.Duration
	pipelined   bool
	chance      chance
	logger      *slog.Logger
	meters      metric.MeterProvider
	tracers     trace.TracerProvider
	tracing     bool // tracers was chosen
	telemetry   *telemetry
}

// chance is what a Locker leaves to chance; a simulation has its own, so that a run can be repeated.
type chance struct {
	owner  func(instance, tag string) string
	jitter func(time.Duration) time.Duration
}

type lockerOption func(*config)

func (o lockerOption) applyLocker(c *config) { o(c) }

type acquireOption func(*settings)

func (o acquireOption) applyAcquire(s *settings) { o(s) }

type lockOption func(*settings)

func (o lockOption) applyLocker(c *config)    { o(&c.settings) }
func (o lockOption) applyAcquire(s *settings) { o(s) }

// WithTTL sets how long a lease lasts if it is not renewed, and so how long a crashed holder blocks the others.
// Default 10 s, at least 10 ms; Redis counts whole milliseconds.
func WithTTL(d time.Duration) LockOption { return lockOption(func(s *settings) { s.ttl = d }) }

// WithWait sets how long Acquire waits for a taken key at most. By default it waits until its context ends.
func WithWait(d time.Duration) LockOption { return lockOption(func(s *settings) { s.wait = d }) }

// WithMaxHold sets for how long a lock is renewed at most, counted from when it was acquired. After that its lease
// runs out, and the lock is lost: a holder that hangs does not block the others for ever. Default 15 min.
func WithMaxHold(d time.Duration) LockOption { return lockOption(func(s *settings) { s.maxHold = d }) }

// WithoutRenewal leaves the lease to end at its TTL unless its holder calls [Lock.Extend].
func WithoutRenewal() LockOption { return lockOption(func(s *settings) { s.noRenew = true }) }

// WithTag sets a text of up to 256 bytes that travels with the lock and that others see in [TakenError].
func WithTag(tag string) AcquireOption { return acquireOption(func(s *settings) { s.tag = tag }) }

// WithPrefix sets what comes before every key in the backend: "onelane:" by default, so that stock:42 is
// onelane:{stock:42} in Redis. With "" keys are written as they are, and exclude plain redsync users of the same
// name; they must not have braces then.
func WithPrefix(prefix string) Option {
	return lockerOption(func(c *config) { c.prefix = prefix })
}

// WithInstance sets the name that says who holds a key, in [TakenError] and in GET of redis-cli.
// Default "<host>:<pid>"; at most 128 bytes without "/", "#" or control characters.
func WithInstance(name string) Option {
	return lockerOption(func(c *config) { c.instance = name })
}

// WithNodeTimeout bounds each call to one Redis node, unless the caller's context ends sooner. Default 1 s,
// and 50 ms on a quorum, where the others decide without it.
func WithNodeTimeout(d time.Duration) Option {
	return lockerOption(func(c *config) { c.nodeTimeout = d })
}

// Pipelined sends what many callers ask of a node at the same time as one pipeline, and what is of one kind as one script for up to 32
// locks: for processes that hold hundreds of different keys at once, where it costs Redis and the process a fraction of a call each.
// Behind a proxy that gives keys to several masters each lock stays a script of its own: whether one script sees all keys is found out
// first. A lone caller's call goes as without it. Each caller's context is honoured as ever: what is given up before it
// was sent is not sent, and what was sent is cleaned up. A quorum of [Clients] with *redis.Clients does so always, since it multiplies the calls.
//
// It is for [Clients] with a *redis.Client, one Redis, Sentinel or a quorum of them, and uses the client's pipeline connections
// (PipelinePoolSize); [New] refuses it with anything else.
func Pipelined() Option { return lockerOption(func(c *config) { c.pipelined = true }) }

// WithLogger sets where lost locks and failed clean-ups are reported. Default [slog.Default].
func WithLogger(l *slog.Logger) Option {
	return lockerOption(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}

// WithMeterProvider sets where metrics go. Default: the global provider of OpenTelemetry ([otel.GetMeterProvider]), which records nothing
// until an SDK is installed, before or after [New].
func WithMeterProvider(p metric.MeterProvider) Option {
	return lockerOption(func(c *config) {
		if p != nil {
			c.meters = p
		}
	})
}

// WithTracerProvider sets where spans go: one for each Acquire and Seal, with the key. Default: the global provider of OpenTelemetry
// ([otel.GetTracerProvider]), which records nothing until an SDK is installed, before or after [New]; and there, only spans within a trace:
// a context that carries no span starts none.
func WithTracerProvider(p trace.TracerProvider) Option {
	return lockerOption(func(c *config) {
		if p != nil {
			c.tracers, c.tracing = p, true
		}
	})
}

func newConfig(opts []Option) (*config, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	c := &config{
		settings: settings{ttl: defaultTTL, maxHold: defaultMaxHold},
		prefix:   defaultPrefix,
		instance: fmt.Sprintf("%s:%d", host, os.Getpid()),
		logger:   slog.Default(),
		chance:   chance{owner: newOwner, jitter: jitter},
		meters:   otel.GetMeterProvider(),
		tracers:  otel.GetTracerProvider(),
	}
	for _, o := range opts {
		if o != nil {
			o.applyLocker(c)
		}
	}
	badInstance := c.instance == "" || len(c.instance) > maxInstance || strings.ContainsAny(c.instance, "/#") ||
		strings.IndexFunc(c.instance, unicode.IsControl) >= 0
	err = cmp.Or(validPrefix(c.prefix), c.settings.valid())
	switch {
	case err != nil:
		return nil, err
	case badInstance:
		return nil, fmt.Errorf("core: instance %q: it must have 1 to %d bytes, without \"/\", \"#\" or control characters", c.instance, maxInstance)
	case c.nodeTimeout < 0 || c.nodeTimeout > maxDuration:
		return nil, fmt.Errorf("core: node time-out %v: it must be positive and at most %v", c.nodeTimeout, maxDuration)
	}
	if c.telemetry, err = newTelemetry(c); err != nil {
		return nil, fmt.Errorf("core: metrics: %w", err)
	}
	return c, nil
}

// with returns the settings of one call.
func (s settings) with(opts []AcquireOption) (settings, error) {
	if len(opts) == 0 {
		return s, nil
	}
	changed := s // so that s itself does not go to the heap where there are no options
	for _, o := range opts {
		if o != nil {
			o.applyAcquire(&changed)
		}
	}
	return changed, changed.valid()
}

var errTag = errors.New("core: a tag must have at most 256 bytes, without control characters")

func (s *settings) valid() error {
	switch {
	case s.ttl < minTTL || s.ttl > maxDuration:
		return fmt.Errorf("core: TTL %v: it must be at least %v and at most %v", s.ttl, minTTL, maxDuration)
	case s.wait < 0:
		return fmt.Errorf("core: wait %v: it must not be negative; use TryAcquire not to wait at all", s.wait)
	case s.maxHold <= 0:
		return fmt.Errorf("core: longest hold %v: it must be positive", s.maxHold)
	case len(s.tag) > maxTag || strings.IndexFunc(s.tag, unicode.IsControl) >= 0:
		return errTag
	}
	return s.validMemory()
}

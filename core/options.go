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
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/onelane/onelane/internal/loglimit"
	"github.com/onelane/onelane/internal/ownertext"
)

const (
	defaultTTL     = 10 * time.Second
	defaultMaxHold = 15 * time.Minute
	defaultOutage  = 10 * time.Second
	defaultPrefix  = "onelane:"
	minTTL         = 10 * time.Millisecond
	maxInstance    = 128
	maxTag         = 256
	forever        = -1 // as a wait

	// maxDuration keeps sums of times and durations in range.
	maxDuration = 10 * 365 * 24 * time.Hour
)

// Option configures a [Locker]. A nil Option is ignored; the later of two wins.
type Option interface{ applyLocker(*config) }

// AcquireOption configures one call of Acquire. Passed to [New], it sets the Locker's default.
// A nil option is ignored; the later of two wins.
type AcquireOption interface {
	Option
	EveryOption
	applyAcquire(*settings)
}

// settings are the options of one acquisition.
type settings struct {
	ttl     time.Duration
	wait    time.Duration // forever, or a bound
	outage  time.Duration
	maxHold time.Duration
	orphan  time.Duration
	adopt   string // an orphan's owner
	tag     string
	token   bool
	holds   bool // other keys of the same call

	leasesOnly bool // the backend is no Sealer
}

// config is what a Locker is made of.
type config struct {
	settings
	prefix   string
	instance string
	// maxWaiters is the cap on waiters for a key, or 0 if there is none.
	maxWaiters int
	logger     *slog.Logger
	meters     metric.MeterProvider
	tracers    trace.TracerProvider
	// tracing is set if the caller chose the tracer provider.
	tracing   bool
	class     func(key string) string // nil without WithClass
	telemetry *telemetry
	chance    chance
}

// chance holds what differs from run to run: random texts, random pauses and the clocks. Tests
// replace it.
type chance struct {
	owner  func(instance, tag string, orphan time.Duration) string
	jitter func(time.Duration) time.Duration
	clocks func(began, now time.Time) (wall, monotonic time.Duration)
}

type lockerOption func(*config)

func (o lockerOption) applyLocker(c *config) { o(c) }

type acquireOption func(*settings)

func (o acquireOption) applyLocker(c *config)    { o(&c.settings) }
func (o acquireOption) applyAcquire(s *settings) { o(s) }

// WithTTL sets how long a lease lasts if it is not renewed, and so how long a crashed holder blocks
// the others. The default is 10 s, the minimum 10 ms. Redis counts whole milliseconds.
func WithTTL(d time.Duration) AcquireOption {
	return acquireOption(func(s *settings) { s.ttl = d })
}

// WithWait sets how long Acquire waits for a taken key. With 0, Acquire tries once. By default it
// waits until its context ends.
func WithWait(d time.Duration) AcquireOption {
	return acquireOption(func(s *settings) {
		if s.wait = d; d < 0 {
			s.wait = invalidWait
		}
	})
}

// invalidWait differs from forever, so that a negative wait is refused.
const invalidWait = -2

// WithOutageWait sets for how long Acquire keeps trying while the backend is unavailable. It counts
// from the first failure that those who wait for the key in this process have seen. After that,
// Acquire returns [*UnavailableError]. The default is 10 s, so that a Sentinel fail-over is a slow
// call and not an error. With 0, the first failure is returned. WithWait and the context end the
// call sooner.
func WithOutageWait(d time.Duration) AcquireOption {
	return acquireOption(func(s *settings) { s.outage = d })
}

// WithMaxHold sets for how long a lock is renewed, counted from when it was acquired. After that
// the lease ends and the lock is lost. So a holder that hangs does not block the others forever.
// The default is 15 min. With 0 nothing is renewed: the lease ends at its TTL unless the holder
// calls [Lock.Extend].
func WithMaxHold(d time.Duration) AcquireOption {
	return acquireOption(func(s *settings) { s.maxHold = d })
}

// WithTag sets a text of up to 256 bytes of UTF-8 that travels with the lock. Others see it in
// [TakenError].
func WithTag(tag string) AcquireOption { return acquireOption(func(s *settings) { s.tag = tag }) }

// WithToken mints the lock's fencing token in the same round trip as Acquire. Without it,
// [Lock.Token] costs one round trip more. A quorum always mints.
func WithToken() AcquireOption { return acquireOption(func(s *settings) { s.token = true }) }

// WithOrphan keeps the key from becoming free if the lease ends without Release or Seal. In that
// case the holder died, hung or lost its connection, and nobody knows how far its work came. The
// key is then orphaned for the retention, and Acquire returns [*OrphanedError]. The orphan ends
// when:
//
//   - somebody adopts it ([Locker.Adopt])
//   - [Locker.Unseal] frees it
//   - the retention ends
//   - the holder's late [Lock.Release] frees it, or its late [Lock.Seal] seals it
//
// A holder whose work may be half done calls [Lock.Lapse], which keeps a later Release from freeing
// the key. The minimum of the retention is 10 ms. With 0 the key becomes free. On a backend that
// cannot seal, the error matches [ErrNoSeals].
func WithOrphan(retention time.Duration) AcquireOption {
	return acquireOption(func(s *settings) { s.orphan = retention })
}

// WithPrefix sets the text before every key in the backend. With the default, "onelane:", the key
// stock:42 is onelane:{stock:42} in Redis. With "", the name in the backend is the key itself. Such
// a lock and a plain redsync lock of the same name exclude each other. Such keys must not contain
// braces.
func WithPrefix(prefix string) Option {
	return lockerOption(func(c *config) { c.prefix = prefix })
}

// WithInstance sets the name of this process in [TakenError] and in the backend. The default is
// "<host>:<pid>". It has at most 128 bytes of UTF-8 and no "/", "#" or control characters.
func WithInstance(name string) Option {
	return lockerOption(func(c *config) { c.instance = name })
}

// WithMaxWaiters sets how many callers of this process may wait for one key. The caller that asks
// the backend counts, too. A further caller gets a [*TakenError] with QueueFull at once. So a flash
// sale does not pile up goroutines. By default there is no limit. Calls that do not wait and calls
// with a context that carries the lock are not refused.
//
// Callers of [Locker.AcquireAny] with the same keys and options wait in a separate line, which has
// the same limit. In the line of each key, all of them count as one waiter.
func WithMaxWaiters(n int) Option {
	return lockerOption(func(c *config) {
		if c.maxWaiters = n; n < 1 {
			c.maxWaiters = -1 // differs from the default, so that it is refused
		}
	})
}

// WithLogger sets where lost locks and failed clean-ups are reported. The default is [slog.Default]
// at the time of [New]. The Locker writes a message at once. It writes further lines of the same
// message at most every 10 s, with the number of lines that it left out. A logger that takes DEBUG
// gets all lines. See docs/operations.md for each message.
func WithLogger(l *slog.Logger) Option {
	return lockerOption(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}

// WithTelemetry sets where metrics and spans go. If a provider is nil, the default stays:
// OpenTelemetry's global provider. It records nothing until an SDK is installed, which may be
// before or after [New]. With the global tracer provider, a call outside of a trace starts no span.
func WithTelemetry(meters metric.MeterProvider, tracers trace.TracerProvider) Option {
	return lockerOption(func(c *config) {
		if meters != nil {
			c.meters = meters
		}
		if tracers != nil {
			c.tracers, c.tracing = tracers, true
		}
	})
}

func newConfig(opts []Option) (*config, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	c := &config{
		settings: settings{ttl: defaultTTL, wait: forever, outage: defaultOutage, maxHold: defaultMaxHold},
		prefix:   defaultPrefix,
		instance: fmt.Sprintf("%s:%d", strings.ToValidUTF8(host, "?"), os.Getpid()),
		logger:   slog.Default(),
		meters:   otel.GetMeterProvider(),
		tracers:  otel.GetTracerProvider(),
		chance:   chance{owner: ownertext.New, jitter: jitter, clocks: clocks},
	}
	for _, o := range opts {
		if o != nil {
			o.applyLocker(c)
		}
	}
	if err := cmp.Or(validPrefix(c.prefix), validInstance(c.instance), c.settings.valid()); err != nil {
		return nil, err
	}
	if c.maxWaiters < 0 {
		return nil, errors.New("core: WithMaxWaiters must be at least 1; omit it for no limit")
	}
	c.logger = loglimit.New(c.logger)
	if c.telemetry, err = newTelemetry(c); err != nil {
		return nil, fmt.Errorf("core: create metrics: %w", err)
	}
	return c, nil
}

func validInstance(name string) error {
	if name == "" || len(name) > maxInstance || !utf8.ValidString(name) || strings.ContainsAny(name, "/#") ||
		strings.IndexFunc(name, unicode.IsControl) >= 0 {
		return fmt.Errorf("core: instance %q must have 1 to %d bytes of UTF-8 and no \"/\", \"#\" or control characters",
			name, maxInstance)
	}
	return nil
}

// with returns the settings of one call.
func (s settings) with(opts []AcquireOption) (settings, error) {
	err := s.apply(opts)
	return s, err
}

// apply changes the settings as the options of one call say.
func (s *settings) apply(opts []AcquireOption) error {
	if len(opts) == 0 {
		return nil
	}
	for _, o := range opts {
		if o != nil {
			o.applyAcquire(s)
		}
	}
	return s.valid()
}

func (s *settings) valid() error {
	switch {
	case s.ttl < minTTL || s.ttl > maxDuration:
		return fmt.Errorf("core: WithTTL: %v must be between %v and %v", s.ttl, minTTL, maxDuration)
	case s.wait == invalidWait:
		return fmt.Errorf("core: WithWait: the wait must not be negative; omit it to wait until the context ends")
	case s.outage < 0:
		return fmt.Errorf("core: WithOutageWait: %v must not be negative", s.outage)
	case s.maxHold < 0:
		return fmt.Errorf("core: WithMaxHold: %v must not be negative", s.maxHold)
	case s.orphan != 0 && (s.orphan < minTTL || s.orphan > maxDuration):
		return fmt.Errorf("core: WithOrphan: %v must be between %v and %v, or 0 for no orphan", s.orphan, minTTL, maxDuration)
	case s.orphan != 0 && s.leasesOnly:
		return fmt.Errorf("core: WithOrphan: %w", ErrNoSeals)
	case len(s.tag) > maxTag || !utf8.ValidString(s.tag) || strings.IndexFunc(s.tag, unicode.IsControl) >= 0:
		return fmt.Errorf("core: WithTag: %q must have at most %d bytes of UTF-8 and no control characters", s.tag, maxTag)
	}
	return nil
}

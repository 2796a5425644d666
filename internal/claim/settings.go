package claim

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
)

// Defaults and limits of the options.
const (
	DefaultRetention = 24 * time.Hour
	MinRetention     = 10 * time.Millisecond
	MaxRetention     = 10 * 365 * 24 * time.Hour
	DefaultMaxRun    = 5 * time.Minute
	DefaultMaxBody   = 1 << 20
	LargestMaxBody   = 8 << 20
)

// Settings are the values of the options that HTTP and gRPC share.
type Settings struct {
	Locker    *core.Locker // nil: core.Default
	Service   string
	Require   bool
	FailOpen  bool
	RunAgain  bool
	Recovers  bool // an adapter adopts unknown outcomes
	Wait      time.Duration
	Retention time.Duration
	MaxRun    time.Duration
	MaxBody   int
	Keys      []EncryptionKey // the first encrypts
	ReadPlain bool

	mistakes []string
}

// DefaultSettings returns the settings without an option.
func DefaultSettings() Settings {
	return Settings{
		Retention: DefaultRetention, MaxRun: DefaultMaxRun, MaxBody: DefaultMaxBody,
	}
}

// Common implements [Target].
func (s *Settings) Common() *Settings { return s }

// Check notes a mistake in an option.
func (s *Settings) Check(ok bool, format string, args ...any) {
	if !ok {
		s.mistakes = append(s.mistakes, fmt.Sprintf(format, args...))
	}
}

// Err returns the mistakes in the options as one text, or "".
func (s *Settings) Err() string {
	s.Check(!s.Recovers || !s.RunAgain,
		"RunAgain and Recover: a handler that may run again needs nobody to decide; omit one of them")
	return strings.Join(s.mistakes, "; ")
}

// UseLocker returns the Locker to use, or nil if there is none.
func (s *Settings) UseLocker() *core.Locker {
	if s.Locker != nil {
		return s.Locker
	}
	return core.Default()
}

// NeedsSeals notes a mistake if the Locker is known already and its backend cannot keep records.
func (s *Settings) NeedsSeals() {
	l := s.UseLocker()
	s.Check(l == nil || l.Seals(), "the Locker cannot keep records: %v", core.ErrNoSeals)
}

// Logger returns the logger of the Locker, or slog's if there is none.
func (s *Settings) Logger() *slog.Logger {
	if l := s.UseLocker(); l != nil {
		return l.Logger()
	}
	return slog.Default()
}

// Target is the configuration of an adapter, which has the shared settings in it.
type Target interface{ Common() *Settings }

// HTTPOption configures idempotency over HTTP.
type HTTPOption interface{ HTTP(Target) }

// GRPCOption configures idempotency over gRPC.
type GRPCOption interface{ GRPC(Target) }

// HTTPLockOption configures a plain lock, or idempotency, over HTTP.
type HTTPLockOption interface {
	HTTPOption
	HTTPLock()
}

// GRPCLockOption configures a plain lock, or idempotency, over gRPC.
type GRPCLockOption interface {
	GRPCOption
	GRPCLock()
}

// DoOption configures idempotency of a function.
type DoOption interface{ Do(Target) }

// Shared is all of these options.
type Shared func(*Settings)

// HTTP implements [HTTPOption].
func (o Shared) HTTP(t Target) { o(t.Common()) }

// GRPC implements [GRPCOption].
func (o Shared) GRPC(t Target) { o(t.Common()) }

// Do implements [DoOption].
func (o Shared) Do(t Target) { o(t.Common()) }

// HTTPLock implements [HTTPLockOption].
func (Shared) HTTPLock() {}

// GRPCLock implements [GRPCLockOption].
func (Shared) GRPCLock() {}

// AcquireLock acquires a plain lock as the settings say.
func (s *Settings) AcquireLock(ctx context.Context, l *core.Locker, key string) (*core.Lock, error) {
	if s.Wait == 0 {
		return l.TryAcquire(ctx, key)
	}
	opts := []core.AcquireOption{core.WithWait(s.Wait)}
	if s.FailOpen {
		opts = append(opts, core.WithOutageWait(0)) // the request runs unprotected instead
	}
	return l.Acquire(ctx, key, opts...)
}

package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
)

// The errors of [Do], beside those of package core and of its function. Look for ErrUnknown first:
// an error of the function, which may match any other, is joined with it.
var (
	// ErrUnknown means that nobody knows what a run of the key did. See [UnknownError].
	ErrUnknown = claim.ErrUnknown
	// ErrInFlight means that another call with the key is running.
	ErrInFlight = claim.ErrInFlight
	// ErrMismatch means that the key was used with another [Payload].
	ErrMismatch = claim.ErrMismatch
	// ErrNotKept means that the function ran, and its result was not kept.
	ErrNotKept = errors.New("idempotency: the function ran, and its result was not kept")
	// ErrUnreadable means that there is a result, and this process cannot read it.
	ErrUnreadable = claim.ErrRecord
)

// DoOption configures [Do]. The last of two wins. They are [Retain], which every call needs,
// [Payload], [Wait], [MaxRun], [RunAgain], [RecoverWith], [MaxBody], [Service], [WithEncryption]
// and [ReadPlain].
type DoOption interface{ claim.DoOption }

type doOption func(*call)

// Do implements [DoOption].
func (o doOption) Do(t claim.Target) { o(t.(*call)) }

// Payload sets what makes two calls with one key the same call, for example the body of a message.
// A call with another payload gets [ErrMismatch]. Only a salted hash of it is stored. Pass bytes as
// they came: the JSON of a struct changes with each new field.
func Payload(b []byte) DoOption { return doOption(func(c *call) { c.payload = b }) }

// RecoverWith makes fn decide about a call of [Do] whose earlier run has an unknown outcome. It runs
// under the claim before the function of Do. It finds out what the earlier run did, for example by
// asking the payment provider with [DeriveKey]. Then it returns [Answered] and the result,
// [RunHandler] if nothing was done, or [StillUnknown]. An error means StillUnknown, too.
//
// T is the type of the result of Do.
func RecoverWith[T any](fn func(ctx context.Context, earlier Run) (T, Recovery, error)) DoOption {
	return doOption(func(c *call) {
		c.Check(fn != nil, "RecoverWith(nil): pass a function, or omit the option")
		c.Recovers, c.recovery = true, fn
	})
}

// UnknownError means that a run of a key ended without a result. Its process died, its function
// failed or panicked, or its claim was lost. It matches [ErrUnknown].
type UnknownError struct {
	// Key is the key as onelanectl takes it.
	Key string
	// Run is the run whose outcome is unknown.
	Run Run
	// Err is the error of the function, or nil.
	Err error
}

// Error names the key, the run and what an operator can do.
func (e *UnknownError) Error() string {
	text := fmt.Sprintf("idempotency: key %q: the outcome of the run on %s, which ended at %s, is unknown: "+
		"find out what it did; if it did nothing, onelanectl unseal lets the next call run",
		e.Key, e.Run.Instance, e.Run.Ended.Format(time.RFC3339))
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Is makes the error match [ErrUnknown].
func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

// Unwrap returns Err.
func (e *UnknownError) Unwrap() error { return e.Err }

// Do runs fn at most once for a key, and returns its result. Later calls get the recorded result,
// even in other processes and after a crash, and fn does not run. It is for what is not a request
// of net/http or gRPC: consumers of queues, webhooks, jobs, other frameworks.
//
//	charge, err := idempotency.Do(ctx, locker, core.Join("charge", order.ID), func(ctx context.Context) (Charge, error) {
//		…
//	}, idempotency.Retain(14*24*time.Hour), idempotency.Payload(message.Body))
//
// Begin the key with the name of the effect. All calls on a Locker share one space of keys, and the
// key of another function would return that function's result. Join parts that come from outside
// with [core.Join]. [Retain] is required: it must be longer than a queue may deliver a message
// again.
//
// If fn fails:
//
//   - An error of fn is not recorded. The outcome of the key is unknown then, because fn may have
//     done something before it failed. The error matches [ErrUnknown], and so does that of each
//     later call.
//   - A result that later calls should get, such as a declined card, is a part of T.
//   - If fn has done nothing, it returns an error that matches [ErrNothingDone], and the next call
//     runs fn.
//   - With [RunAgain] the next call runs fn after any error, and Do returns the error of fn.
//   - With [RecoverWith] a function decides after a crash.
//
// The result is recorded as JSON, and every caller gets it as it was read back, the first one too:
//
//   - A type that JSON does not keep whole is refused before fn runs. It has an interface, a
//     function, a channel, a complex number or a field that is not exported.
//   - Text that is not UTF-8 changes.
//   - Use struct{} if there is no result.
//
// The context of fn does not end with ctx, so that a stopping process does not leave messages
// unknown. It ends at ctx's deadline, after [MaxRun], and when the claim is lost. [Step],
// [DeriveKey] and gormlock.ClaimKey work in it. A call of Do inside fn may have another key; with
// the same key it fails at once. Call [Shutdown] when the process ends.
//
// Call Do outside of a transaction. It records the result before such a transaction commits, and
// after a rollback the key would be done without its effect. Inside, use gormlock.Once.
//
// Other errors:
//
//   - [ErrInFlight], at once or after [Wait], and [ErrMismatch].
//   - [ErrNotKept] and core.ErrLost: the first caller also gets the result. It is too large for
//     [MaxBody] or the backend, or another process has taken the claim over.
//   - core.ErrUnavailable, core.ErrClosed or the error of ctx, without ErrUnknown: fn has not run.
//   - core.ErrNoSeals: the Locker's backend keeps no records.
//
// If the backend fails after fn has run, Do returns the result, and records it when the backend is
// back.
func Do[T any](ctx context.Context, l *core.Locker, key string, fn func(context.Context) (T, error), opts ...DoOption) (T, error) {
	f := &typed[T]{fn: fn}
	c, err := newCall(l, key, opts)
	if err == nil {
		err = f.check(c)
	}
	if err != nil {
		return f.value, fmt.Errorf("idempotency: Do %q: %w", key, err)
	}
	c.fn = f
	err = c.do(ctx)
	return f.value, err
}

// call is one call of Do.
type call struct {
	claim.Settings
	key      string // of the claim
	payload  []byte
	recovery any // a function of RecoverWith

	fn      function
	claim   *claim.Claim
	unknown Run   // the one of which nobody knows what it did, if so
	err     error // of Do
}

func newCall(l *core.Locker, key string, opts []DoOption) (*call, error) {
	c := &call{Settings: claim.DefaultSettings()}
	c.Retention = 0 // none is a good default for all queues
	for _, o := range opts {
		if o != nil {
			o.Do(c)
		}
	}
	c.Check(l != nil, "the Locker is nil: check the error of core.New")
	c.Check(c.Retention != 0, "pass Retain with a time that is longer than the call may come again, for example of a queue's redelivery")
	if text := c.Err(); text != "" {
		return nil, errors.New(text)
	}
	if key == "" {
		return nil, fmt.Errorf("%w: the key is empty", core.ErrInvalidKey)
	}
	// No key of a request begins like this: its source has another name.
	c.Locker, c.key = l, core.Join(c.Service, "", "@do")+":"+key
	return c, nil
}

// function is the part of a call that knows the type of the result.
type function interface {
	run(context.Context) error
	recover(context.Context, Run) (Recovery, error)
	record() ([]byte, error)
	replay([]byte) error
}

// do runs the function, replays its result or refuses the call.
func (c *call) do(ctx context.Context) error {
	if claim.CarriesOn(ctx, c.Locker, c.key) {
		return fmt.Errorf("idempotency: key %q: Do is called inside itself with the same key, and would wait for itself: give the inner call another key", c.key)
	}
	r := claim.Request{Key: c.key, Fingerprint: claim.Fingerprint{Payload: claim.Digest(c.payload)}}
	r.Deadline, _ = ctx.Deadline()
	claim.OfFunctions(c.Locker, c.Settings).Serve(ctx, r, c)
	return c.err
}

// Refuse implements claim.Transport.
func (c *call) Refuse(err error) {
	if unknown, ok := errors.AsType[*claim.UnknownError](err); ok {
		err = &UnknownError{Key: c.key, Run: runOf(unknown)}
	}
	c.err = err
}

// Unprotected implements claim.Transport. There is no FailOpen for functions.
func (c *call) Unprotected(err error) { c.err = err }

// Replay implements claim.Transport.
func (c *call) Replay(r *claim.Record) {
	if r.NotKept {
		c.err = fmt.Errorf("idempotency: key %q: %w", c.key, ErrNotKept)
		return
	}
	if err := c.fn.replay(r.Body); err != nil {
		c.err = fmt.Errorf("idempotency: key %q: %w: let the type read it: %w", c.key, ErrUnreadable, err)
	}
}

// Start implements claim.Transport.
func (c *call) Start(k *claim.Claim) { c.claim = k }

// Recover implements claim.Transport.
func (c *call) Recover(earlier *claim.UnknownError) claim.Recovery {
	run := runOf(earlier)
	said, err := c.fn.recover(c.claim.Context(), run)
	if err == nil && (said == Answered || said == RunHandler) {
		return claim.Recovery(said)
	}
	c.unknown, c.err = run, err
	return claim.StillUnknown
}

// Run implements claim.Transport.
func (c *call) Run() {
	c.err = c.fn.run(c.claim.Context())
	this := c.claim.Run()
	c.unknown = Run{Begun: this.Begun, Ended: time.Now(), Instance: this.Instance}
}

// Facts implements claim.Transport.
func (c *call) Facts() claim.Facts {
	if errors.Is(c.err, ErrNothingDone) {
		return claim.Facts{Verdict: claim.Free}
	}
	return claim.Facts{Failed: c.err != nil}
}

// End implements claim.Transport.
func (c *call) End(f claim.Fate) {
	if f == claim.Keep {
		c.err = c.keep()
		return
	}
	c.claim.End(f, nil)
	switch {
	case f == claim.Unknown, f == claim.Again && c.err == nil: // a part said so, not the function
		c.err = &UnknownError{Key: c.key, Run: c.unknown, Err: c.err}
	case c.err == nil:
		c.err = fmt.Errorf("idempotency: key %q: %w", c.key, ErrNothingDone)
	}
}

// keep records the result. Its error comes with the result.
func (c *call) keep() error {
	b, why := c.fn.record()
	if why == nil && len(b) > c.MaxBody {
		why = fmt.Errorf("it has %d bytes as JSON, and MaxBody is %d", len(b), c.MaxBody)
	}
	record := &claim.Record{Body: b}
	if why != nil {
		record = claim.Tombstone()
	}
	err := c.claim.Complete(record)
	switch {
	case errors.Is(err, core.ErrUnavailable):
		c.Logger().Log(c.claim.Context(), slog.LevelError, "idempotency: the answer is not recorded yet; it will be when the backend is back", "error", err)
		err = nil
	case claim.Stoned(err):
		why, err = err, nil
	}
	if why != nil {
		why = fmt.Errorf("idempotency: key %q: %w: %w", c.key, ErrNotKept, why)
	}
	return errors.Join(why, err)
}

func runOf(e *claim.UnknownError) Run {
	return Run{Begun: e.Run.Begun, Ended: e.Since, Instance: e.Run.Instance, RequestID: e.Run.RequestID}
}

// typed is a function, and its result.
type typed[T any] struct {
	fn    func(context.Context) (T, error)
	ask   func(context.Context, Run) (T, Recovery, error)
	value T
}

// check returns what is wrong before anything runs.
func (f *typed[T]) check(c *call) error {
	if f.fn == nil {
		return errors.New("the function is nil")
	}
	if c.recovery != nil {
		var ok bool
		if f.ask, ok = c.recovery.(func(context.Context, Run) (T, Recovery, error)); !ok {
			return fmt.Errorf("RecoverWith has a function of type %T, which must return a %v", c.recovery, reflect.TypeFor[T]())
		}
	}
	return keeps[T]()
}

func (f *typed[T]) run(ctx context.Context) error {
	value, err := f.fn(ctx)
	if err == nil {
		f.value = value
	}
	return err
}

func (f *typed[T]) recover(ctx context.Context, earlier Run) (Recovery, error) {
	value, verdict, err := f.ask(ctx, earlier)
	if err == nil && verdict == Answered {
		f.value = value
	}
	return verdict, err
}

// record returns the result as JSON. The caller gets what later callers read.
func (f *typed[T]) record() ([]byte, error) {
	b, err := json.Marshal(&f.value)
	if err != nil {
		return nil, err
	}
	return b, f.replay(b)
}

// replay sets the result. After an error it stays as it was.
func (f *typed[T]) replay(b []byte) error {
	var value T
	if err := json.Unmarshal(b, &value); err != nil {
		return err
	}
	f.value = value
	return nil
}

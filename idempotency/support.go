package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
)

// Support looks at the claims of a service and answers unknown outcomes. It is for the tools of
// operators, such as onelanectl. To let a request run again, call [core.Locker.Unseal] with the key
// of [Found].
type Support struct {
	// Locker is on the backend of the service and has its prefix.
	Locker *core.Locker
	// Options are those of the service. [Service], [WithEncryption] and [ReadPlain] count.
	Options []Option
}

// ErrKnown means that no outcome is unknown under a key: it is free, its run goes on, or there is an
// answer.
var ErrKnown = claim.ErrKnown

// Found is what is kept under a key.
type Found struct {
	// Key is that of the lock. It is the whole key, or its beginning and a hash.
	Key string
	// Status is held while a request runs, sealed after its answer, and orphaned if its outcome is
	// unknown.
	Status core.Status
	// Run is as in [Recover]. Ended is only known of an unknown outcome.
	Run Run
	// Answer is the status of the recorded answer, or 0. NotKept means that it was not kept.
	Answer  int
	NotKept bool
	// RunAgain means that a retry runs, although the outcome is unknown.
	RunAgain bool
	// Encrypted is the ID of the key that is missing in Options. Nothing of the request is known then.
	Encrypted string
	// Payload is the salt and the salted hash of the payload that the key belongs to, in hex.
	Payload string
}

// Key returns the key of a claim: of the caller, where the key comes from, and the key as the client
// sends it.
//
//	s.Key("ann", "Idempotency-Key", "k1")                     // a header
//	s.Key("ann", "grpc", "metadata idempotency-key", "k1")    // over gRPC
//	s.Key("ann")                                              // begins all keys of a caller, if ":" follows
//
// The key of [Do] is s.Key("", "@do") + ":" and the key that was passed to Do.
func (s *Support) Key(principal string, parts ...string) string {
	var c claim.Settings
	for _, o := range s.Options {
		o.Do(&c)
	}
	return claim.KeyPrefix + core.Join(append([]string{c.Service, principal}, parts...)...)
}

// Find returns what is kept under a key. The key is one of [Support.Key], that of a step, or one of
// a log, with or without "claim:".
func (s *Support) Find(ctx context.Context, key string) (Found, error) {
	c, err := s.claims()
	if err != nil {
		return Found{}, err
	}
	name, st, err := claim.Look(ctx, s.Locker, key)
	if err != nil {
		return Found{}, err
	}
	d, ok := c.Describe(name, st)
	if !ok && st.Status != core.Free {
		return Found{}, fmt.Errorf("idempotency: key %q is %v, and has no claim that can be read", name, st.Status)
	}
	return Found{
		Key: name, Status: st.Status, Answer: d.Status, NotKept: d.NotKept, RunAgain: d.Again, Encrypted: d.Encrypted, Payload: d.Payload,
		Run: Run{Begun: d.Run.Begun, Ended: st.Since, Instance: d.Run.Instance, RequestID: d.Run.RequestID},
	}, nil
}

// Answer records an answer for a run of unknown outcome, as if that run had given it. Retries get it
// until its mark would have ended. If no outcome is unknown under the key, the error matches
// [ErrKnown], and nothing was done.
//
// Over HTTP the answer has a status, a header and a body. The header needs the Content-Type. For a
// step and for [Do] the body is the result as JSON, and the status is 0. If status is 0 and body is
// nil, the run has done its work, and its answer is not kept. Over gRPC and for [RefuseRepeats] no
// other answer is possible.
func (s *Support) Answer(ctx context.Context, key string, status int, header http.Header, body []byte) error {
	c, err := s.claims()
	if err != nil {
		return err
	}
	name, _, err := claim.Look(ctx, s.Locker, key)
	if err != nil {
		return err
	}
	r := &claim.Record{Status: status, Header: header, Body: body}
	if status == 0 && body == nil {
		r = claim.Tombstone()
	}
	if err := fits(name, r); err != nil {
		return fmt.Errorf("idempotency: answer for key %q: %w", name, err)
	}
	return c.Answer(ctx, name, r)
}

// fits reports what is wrong with an answer for the lock of this name.
func fits(name string, r *claim.Record) error {
	step := strings.HasPrefix(name, claim.StepPrefix)
	parts := strings.Split(name, ":")
	is := func(i int, kind string) bool { return len(parts) > i && parts[i] == kind }
	switch {
	case !claim.IsClaim(name):
		return errors.New("it is not the key of a claim or a step")
	case r.NotKept && step:
		return errors.New("a step needs a result: pass a body")
	case r.NotKept:
		return nil
	case step, is(2, "") && is(3, "@do"):
		if r.Status != 0 || !json.Valid(r.Body) {
			return errors.New("the result of a function is JSON without a status")
		}
	case is(3, "grpc"), is(4, "repeats") && len(parts) > 5: // a key of a header has 5 parts
		return errors.New("only an answer that is not kept can be given: omit the status and the body, or use Recover over gRPC")
	case r.Status < 200 || r.Status > 999:
		return fmt.Errorf("the status %d must be from 200 to 999", r.Status)
	}
	return nil
}

// claims returns the Claims of the service.
func (s *Support) claims() (*claim.Claims, error) {
	c := claim.DefaultSettings()
	for _, o := range s.Options {
		o.Do(&c)
	}
	c.Check(s.Locker != nil, "the Locker is nil: check the error of core.New")
	if text := c.Err(); text != "" {
		return nil, errors.New("idempotency: Support: " + text)
	}
	return claim.OfFunctions(s.Locker, c), nil
}

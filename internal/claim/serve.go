package claim

import "context"

// Transport is one request over HTTP or gRPC, or one call of a function, that [Claims.Serve] serves.
type Transport interface {
	// Refuse answers without a claim. The error is one of [Claims.Begin].
	Refuse(err error)
	// Unprotected runs the handler without a claim, because the backend failed (FailOpen).
	Unprotected(err error)
	// Replay answers with the record of an earlier run.
	Replay(r *Record)
	// Start gets the claim under which the handler is about to run.
	Start(k *Claim)
	// Recover asks the program what an earlier run did. After [StillUnknown] it has refused the request.
	Recover(earlier *UnknownError) Recovery
	// Run runs the handler. A panic goes through it.
	Run()
	// Facts returns what is known of the answer of the handler, or of Recover.
	Facts() Facts
	// End ends the claim, and sends the answer.
	End(f Fate)
}

// Recovery is what a program says of an earlier run.
type Recovery int

// The kinds of [Recovery].
const (
	// StillUnknown means that the program does not know either.
	StillUnknown Recovery = iota
	// Answered means that the program has the answer of the earlier run.
	Answered
	// RunHandler means that the earlier run did nothing.
	RunHandler
)

// Serve is the protocol of all transports. It runs a request once, replays its answer or refuses it.
func (c *Claims) Serve(ctx context.Context, r Request, t Transport) {
	switch out, err := c.Begin(ctx, r); {
	case err != nil:
		t.Refuse(err)
	case out.Unprotected != nil:
		t.Unprotected(out.Unprotected)
	case out.Replay != nil:
		t.Replay(out.Replay)
	default:
		out.Claim.serve(t)
	}
}

// serve runs the handler under the claim, and ends the claim as its fate says.
func (k *Claim) serve(t Transport) {
	returned := false
	defer func() {
		if !returned { // a panic
			k.End(k.Settle(Facts{Failed: true}), Tombstone())
		}
		k.Close()
	}()
	t.Start(k)
	if k.recover(t) == RunHandler {
		t.Run()
	}
	f := k.Settle(t.Facts())
	returned = true
	t.End(f)
}

// recover lets the program decide about the run that the claim took over.
func (k *Claim) recover(t Transport) Recovery {
	if k.adopted == nil || !k.claims.Recovers {
		return RunHandler
	}
	// NothingDone was about the earlier run, even before a panic.
	defer k.forAll(func(k *Claim) { k.withdraw(Free) })
	said := t.Recover(k.adopted)
	switch said {
	case RunHandler:
	case Answered:
		k.recovered = true
	default:
		k.Decide(Unknown)
	}
	return said
}

// forAll calls fn with each claim of the request of k. A function is a separate work, with one
// claim.
func (k *Claim) forAll(fn func(*Claim)) {
	for fn(k); !k.OfFunction() && k.outer != nil && !k.outer.OfFunction(); {
		k = k.outer
		fn(k)
	}
}

// DecideAll is Decide for all claims of the request of ctx. Without one it does nothing.
func DecideAll(ctx context.Context, f Fate) {
	if k, ok := FromContext(ctx); ok {
		k.forAll(func(k *Claim) { k.Decide(f) })
	}
}

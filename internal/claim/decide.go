package claim

// Facts are what is known of a run when the fate of its key is decided.
type Facts struct {
	// Failed means that the handler did not return, or that a function returned an error.
	Failed bool
	// NoHandler means that the answer is a refusal from inside, or that there was no route.
	NoHandler bool
	// GaveUp means that the handler's context had ended, and that the answer may be about that.
	GaveUp bool
	// Unauthenticated means that the caller must get through with the right credentials.
	Unauthenticated bool
	// NoAnswer means that the status is none that a client takes for an answer.
	NoAnswer bool
	// Verdict is what the program, or the table of codes, says about the answer.
	Verdict Fate
	// ServerError means that RunAgain may repeat the run.
	ServerError bool
	// RanElsewhere means that the answer is the refusal of another server, which may have run the
	// request or may be running it.
	RanElsewhere bool
	// Recovered means that Recover answered. An answer that frees the key is then about the retry,
	// and not about the earlier run. Settle sets it.
	Recovered bool
}

// decide returns what becomes of the key. The first case that holds counts. said is what the
// handler or an adapter said, or nil.
func decide(said *Fate, f Facts, runAgain bool) (fate Fate) {
	if runAgain {
		defer func() {
			if fate == Unknown || fate == Unanswered {
				fate = Again
			}
		}()
	}
	frees := f.NoHandler || f.Unauthenticated || f.Verdict == Free
	switch {
	case said != nil:
		return *said
	case f.Failed, f.GaveUp:
		return Unknown
	case f.Recovered && frees:
		return Unknown
	case f.NoHandler, f.Unauthenticated:
		return Free
	case f.NoAnswer:
		return Unknown
	case runAgain && f.ServerError:
		return Again
	case f.RanElsewhere && f.Verdict == Free:
		return Unknown
	}
	return f.Verdict
}

// Settle returns what becomes of the key.
func (k *Claim) Settle(f Facts) Fate {
	k.mu.Lock()
	defer k.mu.Unlock()
	// A time-out middleware inside answers so, and its handler runs on.
	k.goesOn = f.Verdict == Unknown && !f.Failed
	f.Recovered = k.recovered
	return decide(k.fate, f, k.claims.RunAgain)
}

// mayGoOn reports whether the handler may still run, although it has answered.
func (k *Claim) mayGoOn() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.goesOn
}

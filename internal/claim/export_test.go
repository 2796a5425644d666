package claim

import "crypto/sha256"

// Adopted returns the unknown outcome of an earlier run that the claim took over, or nil.
func (k *Claim) Adopted() *UnknownError { return k.adopted }

// Decode reads what is stored under the lock of this name.
func (c *Claims) Decode(name string, b []byte) (*Record, error) {
	r, _, err := c.decode(name, b)
	return r, err
}

// Encode returns what is stored for a request with this fingerprint.
func (c *Claims) Encode(name string, r *Record, payload [sha256.Size]byte) ([]byte, error) {
	m := newMark(Fingerprint{Payload: payload}, "", false)
	return c.encode(name, r, &m, r.Run)
}

// TagMatches reports whether a tag can be read, and whether it matches the fingerprint.
func (c *Claims) TagMatches(name, tag string, fp Fingerprint) (ours, same bool) {
	m, ok := c.parseTag(name, tag)
	return ok, ok && m.check(fp) == nil
}

// NewTag returns the tag of a new claim.
func (c *Claims) NewTag(name string, fp Fingerprint, requestID string) string {
	return c.tag(name, newMark(fp, requestID, false))
}

// OutcomeNames are the values of onelane.outcome.
var OutcomeNames = outcomeNames[:]

// ForgetRoutes lets routes be counted anew.
func ForgetRoutes() {
	routes.Clear()
	nRoutes.Store(0)
}

// MaxDetached is how many handlers may go on without their clients.
const MaxDetached = maxDetached

// Running returns how many handlers, handlers without a client, and late calls there are.
func Running() (handlers, detached, late int) {
	running.mu.Lock()
	defer running.mu.Unlock()
	return len(running.claims), running.detached, len(running.late)
}

// Decide is decide.
func Decide(said *Fate, f Facts, runAgain bool) Fate { return decide(said, f, runAgain) }

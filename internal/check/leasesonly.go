package check

import "github.com/onelane/onelane/core"

// LeasesOnly is a backend that is no [core.Sealer], as a quorum of Redis masters is none.
type LeasesOnly struct{ core.Backend }

// Open implements [core.Opener].
func (b LeasesOnly) Open(core.Environment) (core.Backend, error) { return b, nil }

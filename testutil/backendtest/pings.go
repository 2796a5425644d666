package backendtest

import (
	"context"
	"errors"

	"github.com/onelane/onelane/core"
)

var pingCases = []suiteCase{
	{"Ping", func(s *suite) { s.ok("Ping", s.try(func() error { return s.b.Ping(s.ctx) })) }},
	{"Ping_ContextDone", (*suite).pingContextDone},
}

// pingContextDone checks that a Ping that ctx ended says so, and names no key.
func (s *suite) pingContextDone() {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	err := s.b.Ping(ctx)
	s.want("Ping", err, core.ErrUnavailable)
	if u, ok := errors.AsType[*core.UnavailableError](err); !ok || u.Key != "" || len(u.Nodes) == 0 || !errors.Is(err, context.Canceled) {
		s.Errorf("Ping with a context that is done: %#v", err)
	}
}

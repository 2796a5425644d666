package claim_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/onelane/onelane/internal/claim"
)

// script is a transport that notes what Serve asks of it.
type script struct {
	facts  claim.Facts
	says   claim.Recovery
	frees  bool // Recover says that nothing was done
	panics bool

	claim *claim.Claim
	steps []string
}

func (s *script) note(format string, args ...any) {
	s.steps = append(s.steps, fmt.Sprintf(format, args...))
}

func (s *script) Unprotected(error)      { s.note("unprotected") }
func (s *script) Replay(r *claim.Record) { s.note("replay %s", r.Body) }
func (s *script) Start(k *claim.Claim)   { s.note("start"); s.claim = k }
func (s *script) Facts() claim.Facts     { s.note("facts"); return s.facts }
func (s *script) End(f claim.Fate)       { s.note("end %d", f); s.claim.End(f, record("answer")) }
func (s *script) Refuse(err error) {
	for _, known := range []error{claim.ErrInFlight, claim.ErrMismatch, claim.ErrUnknown} {
		if errors.Is(err, known) {
			s.note("refuse: %v", known)
		}
	}
}

func (s *script) Recover(*claim.UnknownError) claim.Recovery {
	s.note("recover")
	if s.frees {
		claim.DecideAll(s.claim.Context(), claim.Free)
	}
	if s.panics {
		panic("of Recover")
	}
	return s.says
}

func (s *script) Run() {
	s.note("run")
	if s.panics {
		panic("of the handler")
	}
}

func TestServe(t *testing.T) {
	t.Parallel()
	const ran = "start run facts end 0"
	unknown := fmt.Sprintf("refuse: %v", claim.ErrUnknown)
	for name, c := range map[string]struct {
		first, retry script
		setting      change
		want, then   string // the steps of both
	}{
		"kept":     {script{}, script{}, keep(claim.DefaultRetention), ran, "replay answer"},
		"free":     {script{facts: claim.Facts{Verdict: claim.Free}}, script{}, recovers, "start run facts end 1", ran},
		"panic":    {script{panics: true}, script{}, keep(claim.DefaultRetention), "start run", unknown},
		"repeated": {script{panics: true}, script{}, runAgain, "start run", ran},
		"answered": {script{panics: true}, script{says: claim.Answered}, recovers, "start run", "start recover facts end 0"},
		"answered, although nothing was done": {script{panics: true}, script{says: claim.Answered, frees: true}, recovers,
			"start run", "start recover facts end 0"},
		"answered with a refusal": {script{panics: true}, script{says: claim.Answered, facts: claim.Facts{Verdict: claim.Free}}, recovers,
			"start run", "start recover facts end 2"},
		"nothing was done": {script{panics: true}, script{says: claim.RunHandler, frees: true}, recovers,
			"start run", "start recover run facts end 0"},
		"still unknown": {script{panics: true}, script{frees: true}, recovers, "start run", "start recover facts end 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claims := newClaims(memoryLocker(t), c.setting)
			serve := func(s *script) string {
				func() {
					defer func() {
						if p := recover(); (p != nil) != s.panics {
							t.Errorf("recovered %v", p)
						}
					}()
					claims.Serve(t.Context(), claim.Request{Key: "k", Fingerprint: fp("a")}, s)
				}()
				if s.claim != nil && s.claim.Context().Err() == nil {
					t.Error("the context of the handler goes on")
				}
				return strings.Join(s.steps, " ")
			}
			if got := serve(&c.first); got != c.want {
				t.Errorf("first: %s; want %s", got, c.want)
			}
			if got := serve(&c.retry); got != c.then {
				t.Errorf("retry: %s; want %s", got, c.then)
			}
		})
	}
}

// TestServe_RecoverPanicked: after a panic nobody knows what Recover has found out.
func TestServe_RecoverPanicked(t *testing.T) {
	t.Parallel()
	claims := newClaims(memoryLocker(t), recovers)
	serve := func(s script) string {
		defer func() { _ = recover() }()
		claims.Serve(t.Context(), claim.Request{Key: "k", Fingerprint: fp("a")}, &s)
		return strings.Join(s.steps, " ")
	}
	serve(script{panics: true})
	serve(script{panics: true, frees: true})
	if got := serve(script{}); got != "start recover facts end 2" {
		t.Errorf("retry: %s", got)
	}
}

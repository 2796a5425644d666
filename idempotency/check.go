package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/onelane/onelane/internal/claim"
)

// Check returns an error for each of these patterns of an [http.ServeMux] whose requests would be
// refused or would run unprotected. It runs no handler and no middleware. Call it when all routes
// are registered:
//
//	once := idempotency.ByHeader("Idempotency-Key")
//	mux.Handle("POST /orders", once(orders))
//	if err := idempotency.Check(mux, "POST /orders"); err != nil {
//		log.Fatal(err)
//	}
//
// A pattern is an error if no mux has it, or if no middleware of this package protects it. Two
// middlewares that take the same key are an error, too. So is a template with a parameter that the
// path does not have, and a backend that keeps no records.
//
// Check looks through the middlewares of this package and through ServeMuxes. Others do not show
// what is inside, so pass what they wrap. A middleware of this package must not be inside one of
// them.
func Check(h http.Handler, patterns ...string) error {
	var errs []error
	for _, pattern := range patterns {
		for _, err := range checkPattern(h, pattern) {
			errs = append(errs, fmt.Errorf("idempotency: %s cannot be protected: %w", pattern, err))
		}
	}
	return errors.Join(errs...)
}

func checkPattern(h http.Handler, pattern string) []error {
	method, rest, named := strings.Cut(pattern, " ")
	methods := []string{method}
	if !named {
		methods, rest = []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, pattern
	}
	for _, method := range methods {
		if s := seek(h, method, strings.TrimLeft(rest, " \t")); s.patterns[len(s.patterns)-1] == pattern {
			return s.check(method)
		}
	}
	return []error{errors.New("no http.ServeMux that Check can see has this pattern: pass what the middlewares of others wrap")}
}

// seen are the middlewares of this package on the way to a handler.
type seen struct {
	chain []claim.Wiring
	// patterns are those of the muxes on the way, after the place of each middleware in the chain.
	outside  []string
	patterns []string
}

// wildcard is one in a pattern, such as {id}, {path...} or {$}.
var wildcard = regexp.MustCompile(`\{[^}]*\}`)

// seek follows the way of a request for a pattern.
func seek(h http.Handler, method, pattern string) (s seen) {
	s.patterns = []string{""}
	at := strings.IndexByte(pattern, '/')
	if at < 0 {
		return s
	}
	path := wildcard.ReplaceAllStringFunc(pattern[at:], func(w string) string {
		if w == "{$}" {
			return ""
		}
		return "onelane.check" // what no other pattern has
	})
	r := &http.Request{Method: method, Host: pattern[:at], URL: &url.URL{Path: path}}
	for {
		switch inner := h.(type) {
		case *handler:
			s.chain = append(s.chain, inner.wiring)
			s.outside = append(s.outside, s.patterns[len(s.patterns)-1])
			h = inner.next
		case *http.ServeMux:
			next, found := inner.Handler(r)
			if found == "" || next == h {
				return s
			}
			s.patterns, h = append(s.patterns, found), next
		default:
			return s
		}
	}
}

func (s *seen) check(method string) []error {
	errs := claim.CheckRoute(method, s.chain, func(i int, param string) bool {
		return strings.Contains(s.outside[i], "{"+param+"}") || strings.Contains(s.outside[i], "{"+param+"...}")
	})
	for _, w := range s.chain {
		if w.Covers(method) {
			return errs
		}
	}
	return append(errs, errors.New("no middleware of this package that Check can see covers it: put one around its handler"))
}

// handler is a middleware of this package around another handler.
type handler struct {
	serve  func(http.ResponseWriter, *http.Request, http.Handler)
	next   http.Handler
	wiring claim.Wiring
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.serve(w, r, h.next) }

// Wiring is what package ginlock checks.
func (h *handler) Wiring() claim.Wiring { return h.wiring }

// wiring returns what Check has to know. The function of this name made the middleware.
func (f *front) wiring(constructor string, covers func(string) bool) claim.Wiring {
	w := claim.Wiring{
		Name: constructor, Covers: covers, Params: f.Reads, Locker: f.UseLocker,
		Key: claim.WiringKey{Service: f.Service, Source: f.Name, Func: f.Func, Principal: claim.Identity(f.principal)},
	}
	if f.Text != "" {
		w.Name = fmt.Sprintf("%s(%q)", constructor, f.Text)
	}
	return w
}

package ginlock

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/internal/claim"
)

// Check returns an error for each route whose requests would be refused, or be protected in the
// wrong order. Pass the routes that must be protected, and one that is not is an error, too. It
// runs no handler and no middleware. Call it when all routes are registered:
//
//	r.Use(ginlock.ByHeader("Idempotency-Key"))
//	r.POST("/orders", orders)
//	if err := ginlock.Check(r, "POST /orders"); err != nil {
//		log.Fatal(err)
//	}
//
// Check finds:
//
//   - two middlewares that take the same key
//   - a template with a parameter that the path does not have
//   - a backend that keeps no records
//   - a middleware that no handler follows
//   - gin.Recovery or gin.BasicAuth inside of ByHeader, ByKey or By
//   - a middleware that was passed to Use after all routes
//
// It does not know what the middlewares of others do.
func Check(engine *gin.Engine, routes ...string) error {
	all, ok := routesOf(engine)
	if !ok {
		return errors.New("ginlock: Check does not know the fields of this version of Gin: use Gin v1.12, or a later version of onelane")
	}
	protected, used := make(map[string]bool), make(map[uintptr]bool)
	var errs []error
	for _, r := range all {
		name := r.method + " " + r.path
		covered, found := r.check(used)
		protected[name] = covered
		if !covered && slices.Contains(routes, name) {
			found = append(found, errors.New("no middleware of this package covers it: pass one to the route, or to Use before it"))
		}
		for _, err := range found {
			errs = append(errs, fmt.Errorf("ginlock: %s cannot be protected: %w", name, err))
		}
	}
	for _, name := range routes {
		if _, known := protected[name]; !known {
			errs = append(errs, fmt.Errorf("ginlock: %s cannot be protected: there is no such route", name))
		}
	}
	for _, h := range engine.Handlers {
		if w, ours := wiringOf(h); ours && !used[claim.Identity(h)] {
			errs = append(errs, fmt.Errorf("ginlock: %s protects no route: pass it to Use before the routes are registered", w.Name))
		}
	}
	return errors.Join(errs...)
}

// check reports whether a middleware of this package covers the route, and what is wrong. It notes
// the middlewares that it sees.
func (r *route) check(used map[uintptr]bool) (covered bool, errs []error) {
	var chain []claim.Wiring
	keyed := "" // the outermost
	for i, h := range r.chain {
		if text, inside := outermost[code(h)]; inside && keyed != "" {
			errs = append(errs, fmt.Errorf(text, keyed))
		}
		w, ours := wiringOf(h)
		if !ours {
			continue
		}
		used[claim.Identity(h)] = true
		chain = append(chain, w)
		if !w.Covers(r.method) {
			continue
		}
		covered = true
		if w.Keyed && keyed == "" {
			keyed = w.Name
		}
		if i == len(r.chain)-1 {
			errs = append(errs, fmt.Errorf("no handler follows %s: register the handler after it", w.Name))
		}
	}
	return covered, append(errs, claim.CheckRoute(r.method, chain, func(_ int, param string) bool { return r.has(param) })...)
}

// has reports whether the path has a parameter of this name.
func (r *route) has(param string) bool {
	for part := range strings.SplitSeq(r.path, "/") {
		if i := strings.IndexAny(part, ":*"); i >= 0 && part[i+1:] == param {
			return true
		}
	}
	return false
}

const askedKey = "onelane:asked"

// ours is the code of the middlewares of this package.
var ours = sync.OnceValue(func() uintptr {
	return code(adapt(func(next http.Handler) http.Handler { return next }))
})

// wiringOf asks a handler of a chain for its wiring. It does not call those of others.
func wiringOf(h gin.HandlerFunc) (claim.Wiring, bool) {
	if code(h) != ours() {
		return claim.Wiring{}, false
	}
	var asked http.Handler
	var c gin.Context
	c.Set(askedKey, &asked)
	h(&c)
	shows, ok := asked.(interface{ Wiring() claim.Wiring })
	if !ok {
		return claim.Wiring{}, false
	}
	return shows.Wiring(), true
}

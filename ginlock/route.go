package ginlock

import (
	"strings"

	"github.com/gin-gonic/gin"
)

// route is the options of one route.
type route struct {
	pattern string
	opts    []Option
}

// Route sets options for one route of a group or engine that a middleware is used on: they come after the others. The
// pattern is a route's path as it was registered, in full, with its method before it or for all methods:
//
//	r.Use(ginlock.ByHeader("Idempotency-Key", ginlock.Route("POST /payments/:id", ginlock.Require(), ginlock.Retain(7*24*time.Hour))))
//
// Which routes there will be is not known at wiring: a pattern that fits none is not noticed.
func Route(pattern string, opts ...Option) Option {
	return option{"Route", func(c *config) {
		method, path, found := strings.Cut(pattern, " ")
		if !found {
			method, path = "", pattern
		}
		c.check(strings.HasPrefix(path, "/") && !strings.Contains(path, " ") && method == strings.ToUpper(method) && (method != "" || !found),
			`Route(%q): it must be a path as it was registered, or a method and a path: "POST /orders/:id"`, pattern)
		for _, r := range c.routes {
			c.check(r.pattern != pattern, "Route(%q) is there twice: put its options into one", pattern)
		}
		c.routes = append(c.routes, route{pattern, opts})
	}}
}

// perRoute is m, and one more middleware for each route that has options of its own.
func perRoute(m *middleware, opts []Option) gin.HandlerFunc {
	others := make(map[string]*middleware, len(m.routes))
	for _, r := range m.routes {
		own := &middleware{config: newConfig(m.source, append(opts[:len(opts):len(opts)], r.opts...)), source: m.source}
		if len(own.routes) > len(m.routes) {
			panic("ginlock: Route(" + r.pattern + "): a Route cannot have a Route among its options")
		}
		others[r.pattern] = own
	}
	return func(c *gin.Context) {
		path := c.FullPath()
		own, ok := others[c.Request.Method+" "+path]
		if !ok {
			own, ok = others[path]
		}
		if !ok {
			own = m
		}
		own.serve(c)
	}
}

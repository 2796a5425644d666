package claim

import "net/http"

// Router answers the questions about a request that each router answers in its own way. If a
// function is nil, the answer of net/http counts.
type Router struct {
	// Pattern returns the pattern of the route, such as /orders/{id}, or "" if it is not known. The
	// default is r.Pattern. Without a pattern the path takes its place, and a key belongs to one path.
	Pattern func(r *http.Request) string
	// Param returns a parameter of the path. The default is r.PathValue.
	Param func(r *http.Request, name string) (value string, ok bool)
	// User returns the name of the caller that the framework has authenticated, or "". If it
	// returns an error, the request is refused with 500. User is called only if there is no
	// idempotency.Principal.
	User func(r *http.Request) (string, error)
	// Address returns the address of the client. The default is the host of r.RemoteAddr.
	Address func(r *http.Request) string
	// Body returns a body that was read already, or nil.
	Body func(r *http.Request) []byte
	// Bound reports whether the framework reads a JSON body of this request as JSON.
	Bound func(r *http.Request) bool
}

// HTTP implements [HTTPOption].
func (ro Router) HTTP(t Target) { t.(interface{ UseRouter(Router) }).UseRouter(ro) }

// HTTPLock implements [HTTPLockOption].
func (Router) HTTPLock() {}

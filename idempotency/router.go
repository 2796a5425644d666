package idempotency

import (
	"crypto/sha256"
	"mime"
	"net"
	"net/http"
	"strings"

	"github.com/onelane/onelane/internal/claim"
)

// router answers as the functions of a [claim.Router] do, or as net/http does.
type router claim.Router

func (ro router) pattern(r *http.Request) string {
	if ro.Pattern != nil {
		return ro.Pattern(r)
	}
	if r.Pattern == unrouted { // of a middleware outside
		return ""
	}
	return r.Pattern
}

func (ro router) param(r *http.Request, name string) (string, bool) {
	if ro.Param != nil {
		return ro.Param(r, name)
	}
	value := r.PathValue(name)
	return value, value != "" || strings.Contains(r.Pattern, "{"+name+"...}")
}

func (ro router) body(r *http.Request) []byte {
	if ro.Body == nil {
		return nil
	}
	return ro.Body(r)
}

func (ro router) address(r *http.Request) string {
	if ro.Address != nil {
		return ro.Address(r)
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

func (ro router) bound(r *http.Request) bool {
	if ro.Bound != nil {
		return ro.Bound(r)
	}
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return media == "application/json"
}

// who returns the principal, or "" for an anonymous caller.
func (f *front) who(r *http.Request) (string, error) {
	switch {
	case f.principal != nil:
		return f.principal(r), nil
	case f.router.User != nil:
		return f.router.User(r)
	}
	return "", nil
}

// credentials returns a digest of the caller's credentials: headers, and a verified client
// certificate.
func credentials(r *http.Request) [sha256.Size]byte {
	sum := claim.Credentials(r.Header["Authorization"], r.Header["Cookie"], r.Header["X-Api-Key"])
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		sum = claim.Digest(sum[:], []byte("TLS"), r.TLS.VerifiedChains[0][0].Raw)
	}
	return sum
}

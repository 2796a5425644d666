package idempotency

import (
	"crypto/sha256"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/onelane/onelane/internal/claim"
)

// router answers as the functions of a [claim.Router] do, or as net/http does.
type router claim.Router

func (ro router) pattern(r *http.Request) string {
	if ro.Pattern != nil {
		return ro.Pattern(r)
	}
	return r.Pattern
}

// mount returns the prefix that was stripped from the path, as by [http.StripPrefix], or "". The
// routes below a prefix do not know it, and may have the names of those below another one.
func mount(r *http.Request) string {
	path := r.URL.EscapedPath()
	// Most requests, and those that were made in this process.
	if target, _, _ := strings.Cut(r.RequestURI, "?"); target == path || target == "" {
		return ""
	}
	// A client of a proxy sends the whole URL.
	sent, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return ""
	}
	// If the path was rewritten, the prefix is all of it.
	prefix, _ := strings.CutSuffix(sent.EscapedPath(), path)
	return prefix
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

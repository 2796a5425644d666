package idempotency

import (
	"net/http"
	"net/url"
	"strings"
)

// normalHost returns one spelling of a host (RFC 9110, 4.2.3): in lower case, without the port 80
// or 443 and without a last dot. A server behind a proxy does not know the client's scheme, so both
// ports count as the default. Node and Java send the port over HTTP/2 and not over HTTP/1.1.
func normalHost(host string) string {
	name, port := strings.ToLower(host), ""
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, ']') {
		name, port = name[:i], name[i:]
	}
	name = strings.TrimSuffix(name, ".")
	switch port {
	case ":", ":80", ":443":
		return name
	}
	return name + port
}

// decodeUnreserved decodes what need not be escaped in a path (RFC 3986, 2.3), so that %7e and ~
// are the same. Other escapes get upper-case digits.
func decodeUnreserved(path string) string {
	if !strings.Contains(path, "%") {
		return path
	}
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] != '%' || i+2 >= len(path) {
			b.WriteByte(path[i])
			continue
		}
		escaped := path[i : i+3]
		i += 2
		c, err := url.PathUnescape(escaped)
		if err == nil && (isAlphanumeric(c[0]) || strings.Contains("-._~", c)) {
			b.WriteString(c)
		} else {
			b.WriteString(strings.ToUpper(escaped))
		}
	}
	return b.String()
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
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

// unrouted takes the place of an empty pattern while the handler runs. [http.ServeMux] sets the
// pattern, and leaves it empty if it has no route. No pattern has a space at its end.
const unrouted = "/ "

// expectRoute prepares a request for noRoute. Other routers do not set the pattern.
func expectRoute(ro *router, r *http.Request) {
	if ro.Pattern == nil && r.Pattern == "" {
		r.Pattern = unrouted
	}
}

// noRoute reports whether a ServeMux inside had no route for the request, so that no handler ran.
func noRoute(ro *router, r *http.Request, status int) bool {
	return ro.Pattern == nil && r.Pattern == "" && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed)
}

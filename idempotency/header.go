package idempotency

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// recordedHeaders are recorded if the handler changed them.
var recordedHeaders = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition",
	"Content-Range", "Location", "Etag", "Last-Modified", "Link", "Cache-Control", "Vary", "Retry-After",
	"X-Content-Type-Options",
}

var neverRecorded = map[string]bool{
	"Set-Cookie": true, "Set-Cookie2": true, "Authorization": true, "Www-Authenticate": true, "Authentication-Info": true,
	"Date": true, "Content-Length": true, "Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Idempotency-Replayed": true, refusedHeader: true,
}

// unrecorded reports whether a header of this canonical name is never recorded.
func unrecorded(name string) bool { return neverRecorded[name] || strings.HasPrefix(name, "Proxy-") }

// changedHeaders returns the headers of names that differ between before and after. A header that
// is gone has no values. Headers that were there before belong to a middleware outside, which sets
// them for a replay, too. The values are shared with after.
func changedHeaders(before, after http.Header, names map[string]bool) map[string][]string {
	changed := make(map[string][]string)
	before, after = canonical(before), canonical(after)
	for name := range names {
		now, is := after[name]
		was, outside := before[name]
		if !slices.Equal(now, was) || is && !outside { // is without values: no Content-Type is guessed
			changed[name] = now
		}
	}
	return changed
}

// canonical returns h with canonical names. A handler may have set others past http.Header.Set.
func canonical(h http.Header) http.Header {
	c := h
	for name := range h {
		if http.CanonicalHeaderKey(name) == name {
			continue
		}
		c = make(http.Header, len(h))
		for _, name := range slices.Sorted(maps.Keys(h)) { // as they are sent
			to := http.CanonicalHeaderKey(name)
			c[to] = append(c[to], h[name]...)
		}
		break
	}
	return c
}

// changeHeader changes in h what differs between was and to. A writer outside may have changed the
// rest.
func changeHeader(h, was, to http.Header) {
	for name := range was {
		if _, ok := to[name]; !ok {
			delete(h, name)
		}
	}
	for name, values := range to {
		if old, ok := was[name]; !ok || !slices.Equal(old, values) { // nil means: guess no Content-Type
			h[name] = values
		}
	}
}

// contentLength returns the length that a header declares.
func contentLength(h http.Header) (n int64, ok bool) {
	n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	return n, err == nil && n >= 0
}

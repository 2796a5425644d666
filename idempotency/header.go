package idempotency

import (
	"net/http"
	"slices"
	"strings"
)

// recordedHeaders are recorded if the handler changed them.
var recordedHeaders = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition",
	"Content-Range", "Location", "Etag", "Last-Modified", "Link", "Cache-Control", "Vary", "Retry-After",
}

var neverRecorded = map[string]bool{
	"Set-Cookie": true, "Set-Cookie2": true, "Authorization": true, "Www-Authenticate": true, "Authentication-Info": true,
	"Date": true, "Content-Length": true, "Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Idempotency-Replayed": true,
}

// unrecorded reports whether a header of this canonical name is never recorded.
func unrecorded(name string) bool { return neverRecorded[name] || strings.HasPrefix(name, "Proxy-") }

// changedHeaders returns the headers of names that differ between before and after. A header that
// is gone has no values. Headers that were there before belong to a middleware outside, which sets
// them for a replay, too. The values are shared with after.
func changedHeaders(before, after http.Header, names map[string]bool) map[string][]string {
	changed := make(map[string][]string)
	for name := range names {
		now, is := after[name]
		was, outside := before[name]
		if !slices.Equal(now, was) || is && !outside { // is without values: no Content-Type is guessed
			changed[name] = now
		}
	}
	return changed
}

// changeHeader changes in h what differs between was and to. A writer outside may have changed the rest.
func changeHeader(h, was, to http.Header) {
	for name := range was {
		if _, ok := to[name]; !ok {
			delete(h, name)
		}
	}
	for name, values := range to {
		if !slices.Equal(was[name], values) {
			h[name] = values
		}
	}
}

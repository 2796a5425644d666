package ginlock

import (
	"net/http"
	"slices"
	"strings"
)

// recordedHeaders are recorded where the handler changed them.
var recordedHeaders = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition",
	"Location", "Etag", "Last-Modified", "Link", "Cache-Control",
}

var neverRecorded = map[string]bool{
	"Set-Cookie": true, "Set-Cookie2": true, "Authorization": true, "Www-Authenticate": true, "Authentication-Info": true,
	"Date": true, "Content-Length": true, "Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Idempotency-Replayed": true,
}

// unrecorded says that a header of this canonical name is never recorded.
func unrecorded(name string) bool { return neverRecorded[name] || strings.HasPrefix(name, "Proxy-") }

// changedHeaders returns those of names that differ: with no values where the name is gone. What was there before
// belongs to a middleware outside, which sets it for a replay too: a Content-Encoding, say, that is not the handler's.
func changedHeaders(before, after http.Header, names map[string]bool) map[string][]string {
	changed := make(map[string][]string)
	for name := range names {
		if now, was := after[name], before[name]; !slices.Equal(now, was) {
			changed[name] = slices.Clone(now)
		}
	}
	return changed
}

// setHeader makes h what to is.
func setHeader(h, to http.Header) {
	clear(h)
	for name, values := range to {
		h[name] = values
	}
}

package ginlock

import (
	"bufio"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/idempotency"
)

// recorder holds an answer back until it is recorded: seal, then send. An answer that has to go out before that, since
// it is flushed, hijacked or too large, makes it call early and then pass everything on.
type recorder struct {
	gin.ResponseWriter // the writer outside
	max                int
	early              func()

	passing bool
	status  int
	size    int         // -1 until the handler writes, as in gin
	body    []byte      // a copy: the buffers of gin's renderers are used again
	outside bool        // the writer outside had written before, or an informational status was passed on
	before  http.Header // as the middleware found it
	written http.Header // as it was when the handler wrote; nil before
}

var errHijackWritten = errors.New("ginlock: the response has a body already, it cannot be hijacked")

func newRecorder(outer gin.ResponseWriter, max int) *recorder {
	return &recorder{ResponseWriter: outer, max: max, status: outer.Status(), size: -1, outside: outer.Written(), before: outer.Header().Clone()}
}

// Status implements gin.ResponseWriter.
func (w *recorder) Status() int {
	if w.passing {
		return w.ResponseWriter.Status()
	}
	return w.status
}

// Size implements gin.ResponseWriter.
func (w *recorder) Size() int {
	if w.passing {
		return w.ResponseWriter.Size()
	}
	return w.size
}

// Written implements gin.ResponseWriter.
func (w *recorder) Written() bool {
	if w.passing {
		return w.ResponseWriter.Written()
	}
	return w.size >= 0
}

// WriteHeader implements gin.ResponseWriter. A status that comes after the first byte is ignored.
func (w *recorder) WriteHeader(status int) {
	switch {
	case w.passing:
		w.ResponseWriter.WriteHeader(status)
	case status > 0 && !w.Written():
		w.status = status
	}
}

// WriteHeaderNow implements gin.ResponseWriter. An informational status, 103 say, goes out at once, and is followed by
// 200 when the handler writes, as it is in gin.
func (w *recorder) WriteHeaderNow() {
	switch {
	case w.passing:
		w.ResponseWriter.WriteHeaderNow()
	case w.size >= 0:
	case informational(w.status):
		w.size, w.outside = 0, true
		w.ResponseWriter.WriteHeader(w.status)
		w.ResponseWriter.WriteHeaderNow()
	default:
		w.size, w.written = 0, w.Header().Clone()
	}
}

func informational(status int) bool {
	return status >= 100 && status < 200 && status != http.StatusSwitchingProtocols
}

// final is the status that the answer has in the end.
func (w *recorder) final() int {
	if informational(w.status) {
		return http.StatusOK
	}
	return w.status
}

// Write implements io.Writer.
func (w *recorder) Write(b []byte) (int, error) {
	if err := w.room(len(b)); err != nil {
		return 0, err
	}
	if w.passing {
		return w.ResponseWriter.Write(b)
	}
	w.body = append(w.body, b...)
	w.size += len(b)
	return len(b), nil
}

// WriteString implements io.StringWriter.
func (w *recorder) WriteString(s string) (int, error) {
	if err := w.room(len(s)); err != nil {
		return 0, err
	}
	if w.passing {
		return w.ResponseWriter.WriteString(s)
	}
	w.body = append(w.body, s...)
	w.size += len(s)
	return len(s), nil
}

// room gets ready for n more bytes: held, if there is room for them.
func (w *recorder) room(n int) error {
	w.WriteHeaderNow()
	if w.passing {
		return nil
	}
	if w.written == nil {
		w.written = w.Header().Clone()
	}
	switch status := w.final(); {
	case status < 200 || status == http.StatusNoContent || status == http.StatusNotModified:
		return http.ErrBodyNotAllowed
	case w.size+n > w.max:
		return w.pass(w.unchanged())
	}
	return nil
}

// unchanged says that nothing is held but the header, and that this is as it was when the handler wrote.
func (w *recorder) unchanged() bool {
	return len(w.body) == 0 && maps.EqualFunc(w.written, w.Header(), slices.Equal[[]string])
}

// Flush implements http.Flusher.
func (w *recorder) Flush() {
	if !w.passing {
		w.WriteHeaderNow()
		_ = w.pass(w.unchanged()) // a client that is gone shows at the next write
	}
	w.ResponseWriter.Flush()
}

// Hijack implements http.Hijacker.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if !w.passing {
		if w.size > 0 {
			return nil, nil, errHijackWritten
		}
		if err := w.pass(false); err != nil {
			return nil, nil, err
		}
	}
	return w.ResponseWriter.Hijack()
}

// Unwrap is for [http.ResponseController].
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// pass stops holding before the handler is done. What follows at once, a write or a flush, may be left to send the header.
func (w *recorder) pass(follows bool) error {
	w.early()
	return w.send(follows)
}

// send passes on what is held. A handler that has written nothing has left at most a status. The header is left to the
// first write, where there is one: a compression outside decides there what it is.
func (w *recorder) send(follows bool) error {
	w.passing = true
	w.ResponseWriter.WriteHeader(w.status)
	if w.size < 0 || w.written == nil {
		return nil
	}
	// Headers that were set after the handler wrote come too late, as they do without us, but for trailers.
	h := w.Header()
	late := h.Clone()
	changeHeader(h, late, w.written)
	var err error
	switch {
	case len(w.body) > 0:
		_, err = w.ResponseWriter.Write(w.body)
	case !follows:
		w.ResponseWriter.WriteHeaderNow()
	}
	changeHeader(h, w.written, late)
	w.body = nil
	return err
}

// bypassed says whether somebody has answered by the writer outside: gin.Engine.HandleContext hands it to the handlers
// of another route.
func (w *recorder) bypassed() bool { return !w.passing && !w.outside && w.ResponseWriter.Written() }

// record is what is held; names are the headers that are recorded.
func (w *recorder) record(names map[string]bool) *idempotency.Record {
	after := w.written
	if after == nil {
		after = w.Header()
	}
	return &idempotency.Record{Status: w.final(), Header: changedHeaders(w.before, after, names), Body: w.body}
}

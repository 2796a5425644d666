package ginlock

import (
	"bufio"
	"errors"
	"net"
	"net/http"

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
	before  http.Header // as the middleware found it
	written http.Header // as it was when the handler wrote
}

var errHijackWritten = errors.New("ginlock: the response has a body already, it cannot be hijacked")

func newRecorder(outer gin.ResponseWriter, max int) *recorder {
	return &recorder{ResponseWriter: outer, max: max, status: outer.Status(), size: -1, before: outer.Header().Clone()}
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

// WriteHeaderNow implements gin.ResponseWriter.
func (w *recorder) WriteHeaderNow() {
	if w.passing {
		w.ResponseWriter.WriteHeaderNow()
	} else if w.size < 0 {
		w.size, w.written = 0, w.Header().Clone()
	}
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
	switch {
	case w.passing:
		return nil
	case w.status < 200 || w.status == http.StatusNoContent || w.status == http.StatusNotModified:
		return http.ErrBodyNotAllowed
	case w.size+n > w.max:
		return w.pass()
	}
	return nil
}

// Flush implements http.Flusher.
func (w *recorder) Flush() {
	if !w.passing {
		w.WriteHeaderNow()
		_ = w.pass() // a client that is gone shows at the next write
	}
	w.ResponseWriter.Flush()
}

// Hijack implements http.Hijacker.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if !w.passing {
		if w.size > 0 {
			return nil, nil, errHijackWritten
		}
		if err := w.pass(); err != nil {
			return nil, nil, err
		}
	}
	return w.ResponseWriter.Hijack()
}

// Unwrap is for [http.ResponseController].
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// pass stops holding before the handler is done.
func (w *recorder) pass() error {
	w.early()
	return w.send()
}

// send passes on what is held. A handler that has written nothing has left at most a status.
func (w *recorder) send() error {
	w.passing = true
	w.ResponseWriter.WriteHeader(w.status)
	if w.size < 0 {
		return nil
	}
	// Headers that were set after the handler wrote come too late, as they do without us, but for trailers.
	h := w.Header()
	late := h.Clone()
	setHeader(h, w.written)
	w.ResponseWriter.WriteHeaderNow()
	var err error
	if len(w.body) > 0 {
		_, err = w.ResponseWriter.Write(w.body)
	}
	setHeader(h, late)
	w.body = nil
	return err
}

// record is what is held; names are the headers that are recorded.
func (w *recorder) record(names map[string]bool) *idempotency.Record {
	return &idempotency.Record{Status: w.status, Header: changedHeaders(w.before, w.written, names), Body: w.body}
}

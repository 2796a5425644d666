package ginlock

import (
	"bufio"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// writer is a gin.ResponseWriter on the writer of a middleware. Like Gin's own, it sends the status
// with the first byte, or when the handlers have returned.
type writer struct {
	http.ResponseWriter
	status  int
	size    int  // -1 before the first byte
	decided bool // a handler set the status of the answer
	pusher  http.Pusher
}

var _ gin.ResponseWriter = (*writer)(nil)

const notWritten = -1

func newWriter(w http.ResponseWriter, outer gin.ResponseWriter) writer {
	size := notWritten
	if outer.Written() {
		size = outer.Size()
	}
	return writer{ResponseWriter: w, status: outer.Status(), size: size, pusher: outer.Pusher()}
}

// Status implements gin.ResponseWriter.
func (w *writer) Status() int { return w.status }

// Size implements gin.ResponseWriter.
func (w *writer) Size() int { return w.size }

// Written implements gin.ResponseWriter.
func (w *writer) Written() bool { return w.size != notWritten }

// WriteHeader implements gin.ResponseWriter. It only notes the status.
func (w *writer) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.status, w.decided = status, !informational(status)
	}
}

// WriteHeaderNow implements gin.ResponseWriter. An informational status is sent at once, and 200
// follows unless another status is set.
func (w *writer) WriteHeaderNow() {
	if w.Written() {
		return
	}
	w.ResponseWriter.WriteHeader(w.status)
	if informational(w.status) {
		w.status = http.StatusOK
		return
	}
	w.size = 0
}

// finish sends the status if no handler wrote.
func (w *writer) finish() {
	for !w.Written() { // an informational status, and then 200
		w.WriteHeaderNow()
	}
}

// Write implements io.Writer.
func (w *writer) Write(b []byte) (int, error) {
	w.finish()
	n, err := w.ResponseWriter.Write(b)
	w.size += n
	return n, err
}

// WriteString implements io.StringWriter.
func (w *writer) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// Flush implements http.Flusher.
func (w *writer) Flush() {
	w.finish()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // an error means that the client is gone
}

// Hijack implements http.Hijacker.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.size = max(w.size, 0)
	}
	return conn, rw, err
}

// CloseNotify implements http.CloseNotifier, which gin.ResponseWriter asks for.
func (w *writer) CloseNotify() <-chan bool {
	return w.ResponseWriter.(interface{ CloseNotify() <-chan bool }).CloseNotify() // package idempotency's
}

// Pusher implements gin.ResponseWriter.
func (w *writer) Pusher() http.Pusher { return w.pusher }

// Unwrap is for [http.ResponseController].
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// sender is the writer of Gin for middlewares of net/http. For them a status is an answer, with a
// body or without. The header is sent with the first byte, because a compression middleware may
// change it until then.
type sender struct {
	gin.ResponseWriter
	answered int // the status, as long as no body follows; or 0
}

// WriteHeader implements http.ResponseWriter.
func (w *sender) WriteHeader(status int) {
	if informational(status) {
		w.inform(status)
		return
	}
	w.ResponseWriter.WriteHeader(status)
	w.answered = status
}

// Write implements io.Writer. The header goes with the body, when the writer outside sends that: a
// writer that holds it back need not hold back WriteHeaderNow.
func (w *sender) Write(b []byte) (int, error) {
	w.answered = 0
	return w.ResponseWriter.Write(b)
}

// WriteString implements io.StringWriter.
func (w *sender) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// inform sends an informational status past Gin's writer, which would take no other status after
// it. If a writer cannot be unwrapped, inform sends nothing.
func (w *sender) inform(status int) {
	var inner http.ResponseWriter = w
	for {
		outer, ok := inner.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		inner = outer.Unwrap()
	}
	if _, wrapper := inner.(gin.ResponseWriter); !wrapper {
		inner.WriteHeader(status)
	}
}

// finish sends the header of an answer without a body.
func (w *sender) finish() {
	if w.answered != 0 {
		w.WriteHeaderNow()
	}
}

// WriteHeaderNow implements gin.ResponseWriter. A writer outside that holds the status back sends
// it later. Its WriteHeaderNow may be that of Gin's writer, which would send 200.
func (w *sender) WriteHeaderNow() {
	if w.answered == 0 || w.answered == w.Status() {
		w.ResponseWriter.WriteHeaderNow()
	}
}

// Unwrap is for [http.ResponseController].
func (w *sender) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func informational(status int) bool {
	return status >= 100 && status < 200 && status != http.StatusSwitchingProtocols
}

package idempotency

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/onelane/onelane/internal/claim"
)

// recorder holds an answer back until it is recorded: seal, then send. An answer that is flushed,
// hijacked or too large must go out before that. Then the recorder ends the claim and passes on
// everything.
type recorder struct {
	http.ResponseWriter // the writer outside
	front               *front
	claim               *claim.Claim

	bodyRead bool // by this package, before the handler

	passing bool
	wrote   bool
	status  int
	body    []byte

	declared int64 // the Content-Length, if the handler declares one
	declares bool
	offered  int64 // what the handler wrote, even in vain
	flushed  bool  // while the answer was held back

	before  http.Header // when the middleware was entered
	written http.Header // when the handler wrote

	// headerID tells the writers of this answer from others, because they share its header. It is
	// stored, since other goroutines must not call Header.
	headerID uintptr

	unrouted bool // a ServeMux had no route
	refusing bool // a middleware inside is writing a refusal
	refusal  bool // the whole answer is that refusal
}

var errHijackWritten = errors.New("idempotency: the response has a body already and cannot be hijacked")

// newTracker returns a recorder that passes on everything and only notes the status.
func newTracker(w http.ResponseWriter, r *http.Request, f *front) recorder {
	_, read := r.Body.(*restored)
	return recorder{ResponseWriter: w, front: f, bodyRead: read, passing: true, before: w.Header().Clone(), headerID: headerID(w)}
}

// final returns the status of the answer. A handler that wrote nothing has answered 200.
func (w *recorder) final() int {
	if !w.wrote {
		return http.StatusOK
	}
	return w.status
}

// header returns the header of the answer.
func (w *recorder) header() http.Header {
	if w.written != nil {
		return w.written
	}
	return w.Header()
}

// WriteHeader implements http.ResponseWriter. An informational status, such as 103, is sent at
// once.
func (w *recorder) WriteHeader(status int) {
	w.refusal = w.refusal && w.refusing
	informational := status >= 100 && status < 200 && status != http.StatusSwitchingProtocols
	switch {
	case w.wrote && !w.passing:
		return
	case !w.wrote && (status < 100 || status > 999): // as net/http does, and not only when the answer is sent
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	case informational:
		w.ResponseWriter.WriteHeader(status)
		return
	case !w.wrote:
		w.wrote, w.status, w.refusal = true, status, w.refusing
	}
	if w.passing {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.written = w.Header().Clone()
	w.declared, w.declares = contentLength(w.written)
	if status == http.StatusSwitchingProtocols {
		_ = w.pass()
	}
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(b []byte) (int, error) {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	w.refusal = w.refusal && w.refusing
	w.offered += int64(len(b))
	switch {
	case w.passing:
	case len(b) == 0:
		return 0, nil
	case bodyless(w.status):
		return 0, http.ErrBodyNotAllowed
	case w.declares && w.offered > w.declared: // as net/http does
		return 0, http.ErrContentLength
	case len(w.body)+len(b) <= w.front.MaxBody:
		w.body = append(w.body, b...)
		return len(b), nil
	default:
		if err := w.pass(); err != nil {
			return 0, err
		}
	}
	if w.status >= 400 && len(w.body) < longestRefusal { // for passedOn
		w.body = append(w.body, b[:min(len(b), longestRefusal-len(w.body))]...)
	}
	return w.ResponseWriter.Write(b)
}

// longestRefusal is more than the length of any refusal of this package.
const longestRefusal = 4 << 10

func bodyless(status int) bool {
	return status < 200 || status == http.StatusNoContent || status == http.StatusNotModified
}

// Flush implements http.Flusher.
func (w *recorder) Flush() { _ = w.FlushError() }

// FlushError is what [http.ResponseController] calls. The answer stays held back if its type is no
// stream, or if the writer outside cannot flush. A reverse proxy flushes any answer whose length it
// does not know.
func (w *recorder) FlushError() error {
	if !supports(w.ResponseWriter, flushes) {
		return http.ErrNotSupported
	}
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	if !w.passing {
		if !streams(w.written) {
			w.flushed = true
			return nil // the answer goes out, and is recorded, when the handler returns
		}
		if err := w.pass(); err != nil {
			return err
		}
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// streams reports whether an answer of this type is read while it is written.
func streams(h http.Header) bool {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	switch media {
	case "text/event-stream", "application/x-ndjson", "application/jsonl", "application/json-seq", "application/stream+json",
		"multipart/x-mixed-replace":
		return true
	}
	return strings.HasPrefix(media, "application/grpc") || strings.HasPrefix(media, "audio/") || strings.HasPrefix(media, "video/")
}

// supports reports whether w or a writer in it can do what can reports. It looks at the writers
// that [http.ResponseController] looks at, except Gin's writers, which have all methods in any case.
func supports(w http.ResponseWriter, can func(http.ResponseWriter) bool) bool {
	for {
		switch v := w.(type) {
		case *recorder:
			w = v.ResponseWriter
		case interface { // Gin's
			WriteHeaderNow()
			Unwrap() http.ResponseWriter
		}:
			w = v.Unwrap()
		case interface{ Unwrap() http.ResponseWriter }:
			if can(w) {
				return true
			}
			w = v.Unwrap()
		default:
			return can(w)
		}
	}
}

func flushes(w http.ResponseWriter) bool {
	_, simple := w.(http.Flusher)
	_, failing := w.(interface{ FlushError() error })
	return simple || failing
}

func hijacks(w http.ResponseWriter) bool {
	_, ok := w.(http.Hijacker)
	return ok
}

// Hijack implements http.Hijacker. If the connection cannot be hijacked, the answer stays as it
// was.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if !w.passing && len(w.body) > 0 {
		return nil, nil, errHijackWritten
	}
	if !w.passing && w.wrote && supports(w.ResponseWriter, hijacks) { // net/http sends a status before it gives the connection away
		if err := w.pass(); err != nil {
			return nil, nil, err
		}
	}
	// Gin's writer has only noted a status that went through, such as 101. Hijack does not send it.
	if gin, ok := w.ResponseWriter.(interface{ WriteHeaderNow() }); ok && w.passing && w.wrote {
		gin.WriteHeaderNow()
	}
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.status, w.wrote = w.final(), true // nothing may follow
	if !w.passing {
		w.passing = true
		w.endEarly()
	}
	return conn, rw, nil
}

// SetReadDeadline is what [http.ResponseController] calls. If the body was read for the key or the
// fingerprint, there is nothing left to limit. net/http is waiting for the client to hang up then,
// and would end the request's context at the deadline.
func (w *recorder) SetReadDeadline(deadline time.Time) error {
	if w.bodyRead {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).SetReadDeadline(deadline)
}

// CloseNotify implements http.CloseNotifier, which Gin's writer asks for.
func (w *recorder) CloseNotify() <-chan bool {
	for outer := w.ResponseWriter; ; {
		switch x := outer.(type) {
		case interface{ CloseNotify() <-chan bool }:
			return x.CloseNotify()
		case interface{ Unwrap() http.ResponseWriter }:
			outer = x.Unwrap()
		default:
			return nil
		}
	}
}

// Push implements http.Pusher.
func (w *recorder) Push(target string, opts *http.PushOptions) error {
	if p, ok := w.ResponseWriter.(http.Pusher); ok {
		return p.Push(target, opts)
	}
	return http.ErrNotSupported
}

// Unwrap is for [http.ResponseController].
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// pass stops holding the answer back before the handler has returned. If a write or a flush follows
// at once, pass may leave the header to that call.
func (w *recorder) pass() error {
	follows := len(w.body) == 0 && !w.changedLate()
	w.endEarly()
	return w.send(follows)
}

// endEarly decides about the key before the handler has returned: what was sent cannot be taken
// back. An unknown outcome keeps its lease, because the handler goes on.
func (w *recorder) endEarly() {
	switch w.claim.Settle(w.front.facts(w)) {
	case claim.Keep:
		w.claim.End(claim.NotKept, claim.Tombstone())
	case claim.Unknown, claim.Again:
		w.claim.DecideForGood(claim.Unknown)
	}
}

// changedLate reports whether headers were set after the handler wrote.
func (w *recorder) changedLate() bool { return !maps.EqualFunc(w.written, w.Header(), slices.Equal) }

// passedOn reports whether the answer is the refusal of another server, which may have run the
// request or may be running it.
func (w *recorder) passedOn() bool {
	code := w.header().Get(refusedHeader)
	if code != "" && !slices.Contains(w.before[refusedHeader], code) {
		return claim.MayHaveRun(code)
	}
	body := w.body
	if packed, err := gzip.NewReader(bytes.NewReader(body)); err == nil { // from a reverse proxy
		body, _ = io.ReadAll(io.LimitReader(packed, longestRefusal))
	}
	return claim.SaysRan(body) // the handler may have passed on the body alone
}

// send sends the held answer. Gin's writer only notes a status, and sends it with the first byte,
// because a compression middleware may change the header until then.
func (w *recorder) send(follows bool) error {
	w.passing = true
	if !w.wrote {
		return nil
	}
	if w.refusal && !w.refusing {
		defer noteRefusal(w.claim.Context(), w.ResponseWriter)()
	}
	// Headers that were set after the handler wrote came too late, except trailers.
	h := w.Header()
	var late http.Header
	if w.changedLate() {
		late = h.Clone()
		changeHeader(h, late, w.written)
	}
	w.ResponseWriter.WriteHeader(w.status)
	var err error
	if len(w.body) > 0 {
		_, err = w.ResponseWriter.Write(w.body)
	} else if gin, ok := w.ResponseWriter.(interface{ WriteHeaderNow() }); ok && !follows {
		gin.WriteHeaderNow()
	}
	if w.flushed { // over HTTP/1.1, trailers that nobody announced need chunks
		_ = http.NewResponseController(w.ResponseWriter).Flush()
	}
	if late != nil {
		changeHeader(h, w.written, late)
	}
	if w.status < 400 {
		w.body = nil // passedOn reads that of a refusal
	}
	return err
}

// record returns the held answer as a record. It takes the headers in names.
func (w *recorder) record(names map[string]bool) claim.Record {
	return claim.Record{Status: w.final(), Header: changedHeaders(w.before, w.header(), names), Body: w.body}
}

// cut reports whether the handler declared more than it wrote. The client of such an answer sees
// that it broke off. The client of a replay would not, because a replay has its own length.
func (w *recorder) cut() bool {
	declared, ok := contentLength(w.header())
	return ok && declared > int64(len(w.body)) && !bodyless(w.final())
}

// noteRefusal tells the recorders around w that a refusal is written, until the function that it
// returns is called. A refusal is not the answer of the handler. noteRefusal finds the recorders
// through the claims in ctx, because a writer between a recorder and w need not have Unwrap. A
// writer with another header belongs to another answer.
func noteRefusal(ctx context.Context, w http.ResponseWriter) (end func()) {
	var around []*recorder
	for k, _ := claim.FromContext(ctx); k != nil; k = k.Outer() {
		if rec, ok := k.Answer.(*recorder); ok && rec.headerID == headerID(w) {
			around = append(around, rec)
			rec.refusing = true
		}
	}
	return func() {
		for _, rec := range around {
			rec.refusing = false
		}
	}
}

// headerID tells the headers of two answers apart.
func headerID(w http.ResponseWriter) uintptr { return reflect.ValueOf(w.Header()).Pointer() }

// forget drops the held answer.
func (w *recorder) forget() {
	if w.passing {
		return
	}
	w.restoreHeader()
	w.wrote, w.status, w.body, w.written, w.refusal, w.declares = false, 0, nil, nil, false, false
}

// restoreHeader undoes what was changed in the header since the middleware was entered.
func (w *recorder) restoreHeader() {
	h := w.Header()
	clear(h)
	maps.Copy(h, w.before)
}

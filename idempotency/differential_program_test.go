package idempotency_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing/iotest"
	"time"
)

// step is one thing that a random handler does.
type step struct {
	op, name, text string
	n              int
}

func (s step) String() string {
	text := s.text
	if len(text) > 30 {
		text = fmt.Sprintf("%.4s… of %d", text, len(text))
	}
	return fmt.Sprintf("%s(%s %q %d)", s.op, s.name, text, s.n)
}

// program is a random handler and the request that it gets.
type program struct {
	seed    uint64
	steps   []step
	within  string // what stands between the middleware and the steps
	method  string
	body    string
	chunked bool
	expect  bool
	http10  bool
	close   bool
	pipes   bool // the next request comes in the same segment
}

func (p *program) String() string {
	return fmt.Sprintf("seed %d: %s, body of %d, chunked %v, expect %v, HTTP/1.0 %v, close %v, pipelined %v; %s%v",
		p.seed, p.method, len(p.body), p.chunked, p.expect, p.http10, p.close, p.pipes, p.within, p.steps)
}

// has reports whether the handler may do one of these things.
func (p *program) has(ops ...string) bool {
	for _, s := range p.steps {
		for _, op := range ops {
			if s.op == op {
				return true
			}
		}
	}
	return false
}

// sets reports whether the handler may set a header.
func (p *program) sets(header string) bool {
	return slices.ContainsFunc(p.steps, func(s step) bool { return s.op == "header" && s.name == header })
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

var texts = []string{"", "x", "plain text", "<html><body>page", "\x00\x01\x02binary", "\x1f\x8b\x08gzip?", `{"json":1}`}

func newProgram(seed uint64) *program {
	r := rand.New(rand.NewPCG(seed, 7))
	p := &program{seed: seed, method: pick(r, "POST", "POST", "POST", "PUT", "PATCH", "DELETE", "GET", "HEAD")}
	p.within = pick(r, "", "", "", "", "", "", "", "TimeoutHandler", "MaxBytesHandler", "recovery")
	if p.method != "GET" && p.method != "HEAD" {
		p.body = strings.Repeat("b", pick(r, 0, 1, 5, 700, 3000))
		p.chunked, p.expect = r.IntN(4) == 0, r.IntN(8) == 0 && p.body != ""
	}
	p.http10, p.close, p.pipes = r.IntN(10) == 0 && !p.chunked, r.IntN(10) == 0, r.IntN(6) == 0
	if p.expect { // if the body is not read at once, net/http itself may never ask for it
		p.steps = append(p.steps, step{op: "read", n: 10000})
	}
	for range 1 + r.IntN(9) {
		s := newStep(r)
		if s.op == "exit" && p.within == "TimeoutHandler" {
			s.op = "panic" // TimeoutHandler would wait for its goroutine
		}
		if (s.op == "copy" || s.op == "content") && p.has("hijack") {
			s.op = "write" // net/http itself panics
		}
		p.steps = append(p.steps, s)
	}
	if p.expect {
		p.within = ""
	}
	return p
}

func newStep(r *rand.Rand) step {
	text := pick(r, texts...)
	if r.IntN(8) == 0 {
		text = strings.Repeat(pick(r, "a", "<b>", "\x00"), pick(r, 300, 1024, 2048, 2049, 5000, 70000))
	}
	s := step{text: text}
	switch n := r.IntN(100); {
	case n < 22:
		s.op = "write"
	case n < 26:
		s.op = "write string"
	case n < 31:
		s.op, s.n = "copy", r.IntN(3)
	case n < 46:
		s.op, s.n = "status", pick(r, 200, 201, 202, 204, 205, 206, 301, 303, 304, 307, 400, 404, 409, 418, 422, 429, 500, 502, 503, 504, 599, 999)
	case n < 48:
		s.op, s.n = "status", pick(r, -1, 0, 99, 1000)
	case n < 53:
		s.op, s.n = "status", pick(r, 100, 102, 103, 103, 199)
	case n < 54:
		s.op, s.n = "status", 101
	case n < 70:
		s.op = "header"
		s.name = pick(r, "Content-Type", "X-A", "Location", "Etag", "Cache-Control", "Vary", "Retry-After", "Content-Encoding",
			"Link", "x-lower", "Content-Language", "Server", "Connection", "Www-Authenticate", "Last-Modified", "Date")
		s.text = map[string]string{
			"Content-Type": pick(r, "text/plain", "application/json", "text/event-stream", "video/mp4", "text/html; charset=x"),
			"Connection":   pick(r, "close", "keep-alive"), "Content-Encoding": "identity-x", "Retry-After": "3",
			"Date": "Mon, 02 Jan 2006 15:04:05 GMT",
		}[s.name] + ""
		if s.text == "" {
			s.text = pick(r, "v", "a value", "line\r\nbroken", "/there")
		}
	case n < 72:
		s.op, s.name = "no header", pick(r, "Content-Type", "Date", "X-A", "Etag")
	case n < 74:
		s.op, s.name = "delete header", pick(r, "Content-Type", "X-A", "Content-Length", "Trailer")
	case n < 77:
		s.op, s.name, s.text = "header", "Content-Length", pick(r, "0", "1", "10", "16", "300", "-1", "x", "99999")
	case n < 78:
		s.op, s.name, s.text = "header", "Transfer-Encoding", pick(r, "chunked", "identity")
	case n < 80:
		s.op, s.name, s.text = "header", "Trailer", pick(r, "X-T", "X-T, X-U")
	case n < 82:
		s.op, s.name, s.text = "header", "X-T", "trailing"
	case n < 83:
		s.op, s.name, s.text = "header", http.TrailerPrefix+"X-P", "unannounced"
	case n < 84:
		s.op = "cookie"
	case n < 88:
		s.op, s.n = "flush", r.IntN(2)
	case n < 92:
		s.op, s.n = "read", pick(r, 0, 1, 4, 10000)
	case n < 93:
		s.op = "close body"
	case n < 94:
		s.op, s.n = "limit body", pick(r, 0, 3, 10000)
	case n < 95:
		s.op = pick(r, "read deadline", "write deadline", "full duplex", "values", "past write deadline")
	case n < 96:
		s.op = "hijack"
	case n < 97:
		s.op = pick(r, "abort", "panic", "exit", "time-out")
	case n < 98:
		s.op, s.n = "error", pick(r, 404, 500, 503)
	case n < 99:
		s.op, s.n = "redirect", pick(r, 302, 308)
	default:
		s.op = "content"
	}
	return s
}

// execution is a program that serves one request, and what it saw.
type execution struct {
	*program
	runs     int
	saw      []string
	doing    string // the step
	returned bool
	done     chan struct{}
}

func (x *execution) note(format string, args ...any) {
	for i, v := range args { // addresses differ
		if err, ok := v.(error); ok {
			for errors.Unwrap(err) != nil {
				err = errors.Unwrap(err)
			}
			args[i] = err
		}
	}
	x.saw = append(x.saw, x.doing+": "+fmt.Sprintf(format, args...))
}

// sawError reports whether a call of the handler failed so.
func (x *execution) sawError(text string) bool {
	return slices.ContainsFunc(x.saw, func(saw string) bool { return strings.Contains(saw, text) })
}

func (x *execution) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if x.runs++; x.runs > 1 {
		return
	}
	defer close(x.done)
	h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, s := range x.steps {
			x.do(s, w, r)
		}
	}))
	switch x.within {
	case "TimeoutHandler":
		h = http.TimeoutHandler(h, time.Hour, "too late")
	case "MaxBytesHandler":
		h = http.MaxBytesHandler(h, 100)
	case "recovery":
		h = recovered(x, h)
	}
	h.ServeHTTP(w, r)
	x.returned = true
}

// recovered is a middleware that answers for a panic.
func recovered(x *execution, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				x.note("panic: %v", v)
				w.WriteHeader(500)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

func (x *execution) do(s step, w http.ResponseWriter, r *http.Request) {
	x.doing = s.op
	rc := http.NewResponseController(w)
	switch s.op {
	case "write":
		n, err := w.Write([]byte(s.text))
		x.note("%v %v", n, err)
	case "write string":
		n, err := io.WriteString(w, s.text)
		x.note("%v %v", n, err)
	case "copy":
		from := io.Reader(strings.NewReader(s.text))
		switch s.n {
		case 1:
			from = struct{ io.Reader }{from}
		case 2:
			from = io.MultiReader(from, iotest.ErrReader(errors.New("the storage is gone")))
		}
		n, err := io.Copy(w, from)
		x.note("%v %v", n, err)
	case "status":
		w.WriteHeader(s.n)
	case "header":
		switch s.name {
		case "x-lower":
			w.Header()[s.name] = []string{s.text}
		case "Content-Length":
			w.Header().Set(s.name, s.text)
		default:
			w.Header().Add(s.name, s.text)
		}
	case "no header":
		w.Header()[s.name] = nil
	case "delete header":
		w.Header().Del(s.name)
	case "cookie":
		http.SetCookie(w, &http.Cookie{Name: "c", Value: "v"})
	case "flush":
		if s.n == 0 {
			f, ok := w.(http.Flusher)
			if x.note("%v", ok); ok {
				f.Flush()
			}
		} else {
			x.note("%v", rc.Flush())
		}
	case "read":
		b := make([]byte, s.n)
		n, err := io.ReadFull(r.Body, b)
		x.note("%d %v", n, err)
	case "close body":
		x.note("%v", r.Body.Close())
	case "limit body":
		n, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, int64(s.n)))
		x.note("%d %v", n, err)
	case "read deadline":
		x.note("%v", rc.SetReadDeadline(time.Now().Add(time.Hour)))
	case "write deadline":
		x.note("%v", rc.SetWriteDeadline(time.Now().Add(time.Hour)))
	case "past write deadline":
		x.note("%v", rc.SetWriteDeadline(time.Now().Add(-time.Hour)))
	case "full duplex":
		x.note("%v", rc.EnableFullDuplex())
	case "values":
		server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
		x.note("%v %v", server != nil, r.Context().Value(http.LocalAddrContextKey) != nil)
		x.note("%v %v %v", r.Host, r.Proto, r.Header.Get("Idempotency-Key"))
	case "hijack":
		x.hijack(rc)
	case "abort":
		panic(http.ErrAbortHandler)
	case "panic":
		panic("boom")
	case "exit":
		runtime.Goexit()
	case "time-out":
		http.TimeoutHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
			time.Millisecond, "too late").ServeHTTP(w, r)
	case "error":
		http.Error(w, s.text, s.n)
	case "redirect":
		http.Redirect(w, r, "/elsewhere", s.n)
	case "content":
		http.ServeContent(w, r, "file.txt", time.Unix(1e9, 0), strings.NewReader(s.text))
	}
}

func (x *execution) hijack(rc *http.ResponseController) {
	conn, rw, err := rc.Hijack()
	if x.note("%v", err); err != nil {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = rw.WriteString("HTTP/1.1 299 Mine\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
	_ = rw.Flush()
	_ = conn.Close()
}

package idempotency_test

import (
	"bufio"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
)

// Random handlers run behind plain net/http and behind ByHeader. The client and the handler must
// see the same, except for what is in differences. A retry must get the first answer.
//
//	ONELANE_LONG=1 go test -run 'TestDifferential$' ./idempotency          # as in .ci/run
//	ONELANE_DIFF_SEED=42 go test -run 'TestDifferential$' -v ./idempotency # one, in detail
const (
	diffSeeds     = 8000
	diffSeedsFast = 100
)

// exchange is what the client and the handler of a request saw, by name.
type exchange struct {
	*program
	mode string
	seen map[string]string
	x    *execution
	resp *http.Response // nil without an answer
	size int            // of the body
}

func (e *exchange) see(name string, format string, args ...any) {
	e.seen[name] = fmt.Sprintf(format, args...)
}

// difference is one that the documentation tells.
type difference struct {
	why    string // and where it is written
	when   func(plain, ours *exchange) bool
	fields []string // beginnings of their names
}

var differences = []difference{
	{"an answer is held back until the handler returns, even if it is flushed (docs/idempotency.md, What a retry gets)",
		func(_, ours *exchange) bool { return ours.has("flush") },
		[]string{"header Content-Type"}},
	{"an answer is held back, so the client of a handler that panics gets none (docs/idempotency.md, What a retry gets)",
		func(plain, ours *exchange) bool { return !plain.x.returned && !ours.x.returned },
		[]string{"status", "end", "length", "encoding", "header ", "body", "close", "announced", "next"}},
	{"an answer is held back, so its length is known although io.Copy began to send it (docs/idempotency.md, What a retry gets)",
		func(_, ours *exchange) bool { return ours.mode != client2 && ours.has("copy", "content") },
		[]string{"encoding", "length", "header Content-Length", "trailer"}},
	{"an answer is held back, so a body that was written cannot go out before a hijack (recorder.go, Hijack)",
		func(_, ours *exchange) bool { return ours.has("hijack") && ours.x.sawError("cannot be hijacked") },
		[]string{""}},
	{"an answer is held back, so a deadline for writes is for all of it (docs/idempotency.md, What a retry gets)",
		func(plain, _ *exchange) bool { return plain.has("past write deadline") }, []string{""}},
	{"an empty write to 204 or 304 is no error, as over HTTP/1.1 (recorder.go, Write)",
		func(plain, ours *exchange) bool {
			return ours.mode == client2 && plain.x.sawError("0 "+http.ErrBodyNotAllowed.Error())
		},
		[]string{"saw write", "saw copy"}},
	{"the body is read before the handler runs, so its client is asked for it (recorder.go, SetReadDeadline)",
		func(plain, _ *exchange) bool {
			return plain.expect || plain.has("limit body", "full duplex") || plain.within == "MaxBytesHandler"
		},
		[]string{"1xx", "close", "next", "header Connection"}},
	{"the body is read before the handler runs, and stays readable when it has answered or closed it",
		func(plain, _ *exchange) bool { return plain.body != "" || plain.chunked },
		[]string{"saw read", "saw limit body"}},
	{"a write past the Content-Length fails, and does not end the connection (TestWrite_PastTheContentLength)",
		func(_, ours *exchange) bool { return ours.sets("Content-Length") || ours.has("content") },
		[]string{"next", "saw copy"}},
	{"a write past the Content-Length fails over HTTP/2 at once, as over HTTP/1.1 (TestWrite_PastTheContentLength)",
		func(_, ours *exchange) bool {
			return ours.mode == client2 && (ours.sets("Content-Length") || ours.has("content"))
		},
		[]string{"saw", "end", "body", "header Content-Type", "trailer"}},
}

const (
	raw1    = "raw HTTP/1.1"
	client1 = "HTTP/1.1"
	client2 = "HTTP/2"
)

// differ serves programs, plain and under ByHeader.
type differ struct {
	servers map[string]*httptest.Server
	runs    sync.Map // of *execution, by the header X-Run
	mu      sync.Mutex
	used    []int // how often each of differences occurred
	next    int
	keys    atomic.Int64
}

func newDiffer(t *testing.T) *differ {
	d := &differ{servers: make(map[string]*httptest.Server), used: make([]int, len(differences))}
	run := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x, _ := d.runs.Load(r.Header.Get("X-Run"))
		x.(*execution).ServeHTTP(w, r)
	})
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(memory(t)), idempotency.Principal(shop),
		idempotency.MaxBody(50_000))(run)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-Side") {
		case "plain":
			run.ServeHTTP(w, r)
		case "ours":
			once.ServeHTTP(w, r)
		default:
			_, _ = io.WriteString(w, "pong")
		}
	})
	for _, mode := range []string{client1, client2} {
		s := httptest.NewUnstartedServer(h)
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		if s.EnableHTTP2 = mode == client2; s.EnableHTTP2 {
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		d.servers[mode] = s
	}
	return d
}

// ask sends the request of p and waits until its handler, if it ran, has returned.
func (d *differ) ask(t *testing.T, p *program, mode, side, key string) *exchange {
	d.mu.Lock()
	d.next++
	id := strconv.Itoa(d.next)
	d.mu.Unlock()
	e := &exchange{program: p, mode: mode, seen: make(map[string]string), x: &execution{program: p, done: make(chan struct{})}}
	d.runs.Store(id, e.x)
	defer d.runs.Delete(id)
	h := http.Header{"X-Run": {id}, "X-Side": {side}, "Idempotency-Key": {key}}
	if p.expect {
		h.Set("Expect", "100-continue")
	}
	if mode == raw1 {
		d.askRaw(t, e, h)
	} else {
		d.askClient(t, e, h)
	}
	if e.resp == nil || e.resp.Header.Get("Idempotency-Replayed") == "" && e.refusal() == "" {
		select {
		case <-e.x.done:
		case <-time.After(check.Patience):
			t.Fatalf("%s, %s: the handler did not return: %v", mode, side, p)
		}
		for i, text := range e.x.saw {
			what, text, _ := strings.Cut(text, ": ")
			e.see(fmt.Sprintf("saw %s %d", what, i), "%s", text)
		}
		e.see("handler returned", "%v", e.x.returned)
		e.see("handler ran", "%d", e.x.runs)
	}
	return e
}

func (e *exchange) refusal() string {
	if e.resp == nil {
		return ""
	}
	return e.resp.Header.Get("Idempotency-Refused")
}

func (d *differ) askRaw(t *testing.T, e *exchange, h http.Header) {
	c, err := net.Dial("tcp", d.servers[client1].Listener.Addr().String())
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(check.Patience)))
	var b strings.Builder
	proto := "HTTP/1.1"
	if e.http10 {
		proto = "HTTP/1.0"
	}
	fmt.Fprintf(&b, "%s /run %s\r\nHost: shop.example\r\n", e.method, proto)
	switch {
	case e.close:
		h.Set("Connection", "close")
	case e.http10:
		h.Set("Connection", "keep-alive")
	}
	if e.chunked {
		h.Set("Transfer-Encoding", "chunked")
	} else if e.body != "" {
		h.Set("Content-Length", strconv.Itoa(len(e.body)))
	}
	must(t, h.Write(&b))
	b.WriteString("\r\n")
	switch {
	case e.chunked && e.body != "":
		fmt.Fprintf(&b, "%x\r\n%s\r\n0\r\n\r\n", len(e.body), e.body)
	case e.chunked:
		b.WriteString("0\r\n\r\n")
	default:
		b.WriteString(e.body)
	}
	const ping = "GET /ping HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
	if e.pipes {
		b.WriteString(ping)
	}
	_, err = io.WriteString(c, b.String())
	must(t, err)
	br := bufio.NewReader(c)
	for {
		resp, err := http.ReadResponse(br, &http.Request{Method: e.method})
		if err != nil {
			e.see("end", "no answer")
			return
		}
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			e.answer(resp)
			break
		}
		e.informed(resp.StatusCode, resp.Header)
	}
	if !e.pipes {
		_, _ = io.WriteString(c, ping) // an error means that the connection is closed
	}
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		e.see("next", "no answer")
		return
	}
	body, _ := io.ReadAll(resp.Body)
	e.see("next", "%d %s", resp.StatusCode, body)
}

func (d *differ) askClient(t *testing.T, e *exchange, h http.Header) {
	s := d.servers[e.mode]
	tr := &http.Transport{ExpectContinueTimeout: time.Minute}
	if e.mode == client2 {
		tr.ForceAttemptHTTP2 = true
		tr.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	}
	defer tr.CloseIdleConnections()
	body := io.Reader(strings.NewReader(e.body))
	if e.chunked {
		body = struct{ io.Reader }{body}
	}
	ctx, cancel := context.WithTimeout(t.Context(), check.Patience)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		e.informed(code, http.Header(h))
		return nil
	}})
	r, err := http.NewRequestWithContext(ctx, e.method, s.URL+"/run", body)
	must(t, err)
	r.Host, r.Header = "shop.example", h
	r.Close = e.close && e.mode == client1
	resp, err := tr.RoundTrip(r)
	if err != nil {
		e.see("end", "no answer")
		return
	}
	defer resp.Body.Close()
	e.answer(resp)
}

func (e *exchange) informed(status int, h http.Header) {
	h = h.Clone()
	h.Del("Date")
	e.seen["1xx"] += fmt.Sprintf("%d %v; ", status, h)
}

// answer notes an answer.
func (e *exchange) answer(resp *http.Response) {
	e.resp = resp
	e.see("status", "%d", resp.StatusCode)
	e.see("length", "%d", resp.ContentLength)
	e.see("encoding", "%v", resp.TransferEncoding)
	e.see("close", "%v", resp.Close)
	e.see("announced", "%v", slices.Sorted(maps.Keys(resp.Trailer)))
	for name, values := range resp.Header {
		if name != "Date" || values[0] == "Mon, 02 Jan 2006 15:04:05 GMT" {
			e.see("header "+name, "%q", values)
		}
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return
	}
	body, err := io.ReadAll(resp.Body)
	e.size = len(body)
	e.see("body", "%.40q, %d bytes, %x", body, len(body), crc32.ChecksumIEEE(body))
	e.see("end", "ok")
	if err != nil {
		e.see("end", "cut")
	}
	for name, values := range resp.Trailer {
		e.see("trailer "+name, "%q", values)
	}
}

// compare returns the fields that differ for no known reason.
func (d *differ) compare(plain, ours *exchange) (bad []string) {
	names := maps.Clone(plain.seen)
	maps.Copy(names, ours.seen)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, isWas := plain.seen[name]
		is, isIs := ours.seen[name]
		if was == is && isWas == isIs || d.known(name, plain, ours) {
			continue
		}
		bad = append(bad, fmt.Sprintf("%s: plain %.100q %v, ours %.100q %v", name, was, isWas, is, isIs))
	}
	return bad
}

func (d *differ) known(name string, plain, ours *exchange) bool {
	for i, k := range differences {
		if slices.ContainsFunc(k.fields, func(f string) bool { return strings.HasPrefix(name, f) }) && k.when(plain, ours) {
			d.mu.Lock()
			d.used[i]++
			d.mu.Unlock()
			return true
		}
	}
	return false
}

func (d *differ) run(t *testing.T, seed uint64) {
	for _, mode := range []string{raw1, client1, client2} {
		p := newProgram(seed)
		bad := d.try(t, p, mode)
		if len(bad) == 0 {
			continue
		}
		for i := 0; i < len(p.steps); { // leave out what does not matter
			less := *p
			less.steps = slices.Delete(slices.Clone(p.steps), i, i+1)
			if found := d.try(t, &less, mode); len(found) > 0 {
				p, bad = &less, found
			} else {
				i++
			}
		}
		t.Errorf("%s: %s\n%s", mode, strings.Join(bad, "\n"), p)
	}
}

// try returns what differs.
func (d *differ) try(t *testing.T, p *program, mode string) []string {
	key := strconv.FormatInt(d.keys.Add(1), 10)
	plain, ours := d.ask(t, p, mode, "plain", key), d.ask(t, p, mode, "ours", key)
	if bad := d.compare(plain, ours); len(bad) > 0 {
		return bad
	}
	return d.compareRetry(t, ours, key)
}

// replayed are the headers that a replay has, as documented at idempotency.Headers.
var replayed = []string{"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Range", "Location",
	"Etag", "Last-Modified", "Link", "Cache-Control", "Vary", "Retry-After", "X-Content-Type-Options"}

// ofReplay are headers that a replay has of its own.
var ofReplay = []string{"header Content-Length", "header Connection", "header Idempotency-Replayed"}

// compareRetry sends the request again. It must get the first answer, or what docs/idempotency.md
// says under "What becomes of an answer".
func (d *differ) compareRetry(t *testing.T, first *exchange, key string) (bad []string) {
	again := d.ask(t, first.program, first.mode, "ours", key)
	fate := idempotency.OutcomeUnknown // of a panic
	if first.resp != nil && first.x.returned {
		fate = idempotency.DefaultFate(first.resp.StatusCode, first.resp.Header)
	}
	code := again.refusal()
	unkept := first.x.sawError("hijack: <nil>") || first.seen["end"] == "cut" && !first.bodiless() || first.size > 50_000 || first.streams()
	odd := first.sets("Transfer-Encoding") ||
		slices.ContainsFunc(first.steps, func(s step) bool { return s.n == http.StatusSwitchingProtocols })
	switch {
	case first.method == "GET" || first.method == "HEAD", again.x.runs == 1 && fate == idempotency.FreeKey:
		return d.compare(first, again)
	case first.resp == nil && first.x.returned, // the client cannot know what was recorded
		code == idempotency.CodeResponseNotKept && (unkept || odd),
		(code == idempotency.CodeOutcomeUnknown || code == idempotency.CodeInFlight) && fate == idempotency.OutcomeUnknown:
		return nil
	case again.resp == nil || again.resp.Header.Get("Idempotency-Replayed") == "" || fate != idempotency.KeepAnswer || unkept:
		return []string{fmt.Sprintf("the retry got %q %d runs, the first %q", again.seen, again.x.runs, first.seen)}
	}
	if first.sets("Transfer-Encoding") {
		again.seen["header Content-Type"] = first.seen["header Content-Type"] // net/http may have guessed none
	}
	if first.bodiless() { // with a Content-Length, the client may say that it is cut
		again.seen["end"] = first.seen["end"]
	}
	names := []string{"status", "end", "body"}
	for name := range again.seen {
		if strings.HasPrefix(name, "header ") && !slices.Contains(ofReplay, name) {
			names = append(names, name)
		}
	}
	for _, name := range replayed {
		names = append(names, "header "+name)
	}
	for _, name := range names {
		if was, is := first.seen[name], again.seen[name]; was != is {
			bad = append(bad, fmt.Sprintf("replay, %s: first %.100q, then %.100q", name, was, is))
		}
	}
	return bad
}

// bodiless reports whether the answer has no body because of its status.
func (e *exchange) bodiless() bool {
	return e.resp != nil && (e.resp.StatusCode == http.StatusNoContent || e.resp.StatusCode == http.StatusNotModified)
}

// streams reports whether the answer was sent before its handler had returned.
func (e *exchange) streams() bool {
	media := e.seen["header Content-Type"]
	return (strings.Contains(media, "event-stream") || strings.Contains(media, "video")) &&
		(e.x.sawError("flush: true") || e.x.sawError("flush: <nil>"))
}

// TestDifferential_Found runs the handlers that TestDifferential has found.
func TestDifferential_Found(t *testing.T) {
	t.Parallel()
	d := newDiffer(t)
	for name, steps := range map[string][]step{
		"no byte of what was announced": {{op: "header", name: "Content-Length", text: "10"}},
		"an invalid length":             {{op: "header", name: "Content-Length", text: "-1"}, {op: "write", text: "made"}},
		"an invalid status":             {{op: "status", n: 1000}, {op: "write", text: "made"}},
		"an unannounced trailer": {{op: "write", text: "made"}, {op: "flush"},
			{op: "header", name: http.TrailerPrefix + "X-P", text: "1"}},
		"a status before a hijack": {{op: "status", n: 202}, {op: "hijack"}},
		"no type, and then any": {{op: "no header", name: "Content-Type"}, {op: "write", text: "made"},
			{op: "delete header", name: "Content-Type"}},
		"a write after one past the length": {{op: "header", name: "Content-Length", text: "4"}, {op: "write", text: "ma"},
			{op: "write", text: "past it"}, {op: "write", text: "de"}},
		"nothing written to 304": {{op: "status", n: 304}, {op: "write"}},
	} {
		for _, within := range []string{"", "recovery"} {
			p := &program{steps: steps, within: within, method: "POST", body: "7 EUR"}
			for _, mode := range []string{raw1, client1, client2} {
				if bad := d.try(t, p, mode); len(bad) > 0 {
					t.Errorf("%s, %s: %s\n%s", name, mode, strings.Join(bad, "\n"), p)
				}
			}
		}
	}
}

func TestDifferential(t *testing.T) {
	t.Parallel()
	d := newDiffer(t)
	if text := os.Getenv("ONELANE_DIFF_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		must(t, err)
		t.Log(newProgram(seed))
		d.run(t, seed)
		return
	}
	seeds := diffSeedsFast
	if check.Long {
		seeds = diffSeeds
	}
	if check.Race {
		seeds = diffSeedsFast / 10
	}
	t.Run("seeds", func(t *testing.T) {
		workers := runtime.GOMAXPROCS(0)
		for worker := range workers {
			t.Run(fmt.Sprint(worker), func(t *testing.T) {
				t.Parallel()
				for seed := worker; seed < seeds; seed += workers {
					d.run(t, uint64(seed))
				}
			})
		}
	})
	for i, k := range differences {
		if check.Long && !check.Race && d.used[i] == 0 {
			t.Errorf("no handler differs so: %s", k.why)
		}
	}
}

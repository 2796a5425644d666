package idempotency_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func shop(*http.Request) string { return "shop-1" }

// memory returns a Locker whose keys nobody else sees.
func memory(t testing.TB, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(backendtest.Memory(), opts...)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// raw sends a request as HTTP/1.1 with this Host.
func raw(t *testing.T, address, host string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	must(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /orders/7 HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}", host)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return answer{resp.StatusCode, string(b), resp.Header}
}

// RFC 9110, 4.2.3: these are one host, and so one request.
func TestScope_SpellingsOfAHost(t *testing.T) {
	t.Parallel()
	for first, others := range map[string][]string{
		"pay.example.com":      {"PAY.example.com", "pay.example.com:80", "pay.example.com:443", "pay.example.com.", "pay.example.com.:80", "pay.example.com:"},
		"pay.example.com:8080": {"Pay.Example.com:8080", "pay.example.com.:8080"},
		"[::1]":                {"[::1]:80", "[::1]:443"},
		"[::1]:8080":           {"[::1]:8080"},
	} {
		var runs atomic.Int64
		s := orders(t, memory(t), counter(&runs), idempotency.Principal(shop))
		address := strings.TrimPrefix(s.url, "http://")
		raw(t, address, first).want(t, 201, "run 1", false)
		for _, host := range others {
			raw(t, address, host).want(t, 201, "run 1", true)
		}
		for _, host := range []string{"pay.example.org", first + "1", "[::2]"} {
			raw(t, address, host).refused(t, idempotency.CodeKeyReused)
		}
	}
}

// The same key with another request never runs, whatever differs. The log and the refusal name the
// part, and no value.
func TestScope_NamesThePart(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	l := memory(t, core.WithLogger(slog.New(slog.NewJSONHandler(&logged, nil))))
	var runs atomic.Int64
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(l), idempotency.Principal(shop), idempotency.FingerprintHeaders("X-Tenant"))
	send := func(method, target, host, body string, header ...string) answer {
		r := httptest.NewRequest(method, target, strings.NewReader(body))
		r.Host = host
		r.Header.Set("Idempotency-Key", "k")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		once(counter(&runs)).ServeHTTP(w, r)
		return answer{w.Code, w.Body.String(), w.Result().Header}
	}
	send("POST", "/secret/%7ea?q=secret", "secret.example", "secret").want(t, 201, "run 1", false)
	send("POST", "/secret/~%61?q=secret", "secret.example", "secret").want(t, 201, "run 1", true)
	for part, a := range map[string]answer{
		"method":  send("PUT", "/secret/~a?q=secret", "secret.example", "secret"),
		"host":    send("POST", "/secret/~a?q=secret", "secret.example.org", "secret"),
		"path":    send("POST", "/secret/~a/?q=secret", "secret.example", "secret"),
		"query":   send("POST", "/secret/~a?q=secret2", "secret.example", "secret"),
		"headers": send("POST", "/secret/~a?q=secret", "secret.example", "secret", "X-Tenant", "secret"),
		"body":    send("POST", "/secret/~a?q=secret", "secret.example", "secret2"),
	} {
		a.refused(t, idempotency.CodeKeyReused)
		var p idempotency.Refusal
		must(t, json.Unmarshal([]byte(a.body), &p))
		if want := "The " + part + " of this request differs"; !strings.HasPrefix(p.Detail, want) {
			t.Errorf("%s: detail %q", part, p.Detail)
		}
		if named := strings.Contains(p.Correction, "AnyHost"); named != (part == "host") {
			t.Errorf("%s: correction %q", part, p.Correction)
		}
		if strings.Contains(a.body, "secret") {
			t.Errorf("%s: the refusal shows a value: %s", part, a.body)
		}
	}
	must(t, l.Close())
	if log := logged.String(); strings.Contains(log, "secret") || !strings.Contains(log, `"differs":"`) {
		t.Error(log)
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// Three instances, behind Go's own proxy, which rewrites Host, and by their addresses.
func TestScope_ThreeInstances(t *testing.T) {
	t.Parallel()
	for _, anyHost := range []bool{true, false} {
		var runs atomic.Int64
		l := memory(t)
		opts := []idempotency.HTTPOption{idempotency.Principal(shop)}
		if anyHost {
			opts = append(opts, idempotency.AnyHost())
		}
		var pods []*server
		for range 3 {
			pod := orders(t, l, counter(&runs), opts...)
			pod.host = "" // of its address
			pods = append(pods, pod)
		}
		var n atomic.Int64
		gateway := serve(t, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			target, err := url.Parse(pods[n.Add(1)%3].url)
			must(t, err)
			r.SetURL(target)
		}})
		gateway.order("{}").want(t, 201, "run 1", false)
		all := []answer{pods[0].order("{}"), pods[1].order("{}"), pods[2].order("{}")}
		for range 3 {
			all = append(all, gateway.order("{}"))
		}
		replays := 0
		for _, a := range all {
			if a.replayed() {
				replays++
				continue
			}
			a.refused(t, idempotency.CodeKeyReused)
		}
		if want := map[bool]int{true: 6, false: 2}[anyHost]; replays != want || runs.Load() != 1 {
			t.Errorf("AnyHost %v: %d replays, want %d; %d runs", anyHost, replays, want, runs.Load())
		}
	}
}

// A key that says where to go instead, and one without a route, did nothing.
func TestScope_NothingRan(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := memory(t)
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(l), idempotency.Principal(shop))
	mux := http.NewServeMux()
	mux.Handle("POST /pay/", counter(&runs))
	mux.Handle("POST /old", http.RedirectHandler("/pay/", http.StatusTemporaryRedirect))
	mux.Handle("POST /older", http.RedirectHandler("/pay/", http.StatusPermanentRedirect))
	mux.HandleFunc("GET /orders", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /misdirected", func(w http.ResponseWriter, _ *http.Request) {
		if runs.Add(1) == 1 {
			w.WriteHeader(http.StatusMisdirectedRequest)
		}
	})
	mux.HandleFunc("POST /gone", func(w http.ResponseWriter, r *http.Request) { runs.Add(1); http.NotFound(w, r) })
	s := serve(t, once(mux))
	send := func(path, key string) answer {
		return s.post(t.Context(), path, strings.NewReader("{}"), "Idempotency-Key", key)
	}
	for i, path := range []string{"/old", "/older", "/pay"} { // ServeMux adds the slash
		want := fmt.Sprint("run ", i+1)
		send(path, path).want(t, 201, want, false)
		send("/pay/", path).want(t, 201, want, true)
	}
	runs.Store(0)
	if a := send("/misdirected", "m"); a.status != 421 {
		t.Errorf("status %d", a.status)
	}
	send("/misdirected", "m").want(t, 200, "", false)

	// A roll-out adds routes.
	for path, status := range map[string]int{"/refunds": 404, "/orders": 405} {
		runs.Store(0)
		if a := send(path, "r"+path); a.status != status {
			t.Errorf("%s: status %d", path, a.status)
		}
		mux.Handle("POST "+path, counter(&runs))
		send(path, "r"+path).want(t, 201, "run 1", false)
		send(path, "r"+path).want(t, 201, "run 1", true)
	}

	// A handler's own 404 is an answer.
	runs.Store(0)
	send("/gone", "g")
	if a := send("/gone", "g"); a.status != 404 || !a.replayed() || runs.Load() != 1 {
		t.Errorf("status %d, replayed %v, %d runs", a.status, a.replayed(), runs.Load())
	}
}

// A freed key may come with another request. Each derives its own keys.
func TestScope_DerivedKeys(t *testing.T) {
	t.Parallel()
	l := memory(t)
	var got []string
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, err := idempotency.DeriveKey(r.Context(), "charge")
		must(t, err)
		step, err := idempotency.Step(r.Context(), "charge", func(context.Context) (string, error) { return r.Host + r.URL.Path, nil })
		must(t, err)
		got = append(got, key, step)
		w.WriteHeader(http.StatusConflict) // frees the key
	})
	send := func(path, host string, opts ...idempotency.HTTPOption) (key, step string) {
		opts = append(opts, idempotency.WithLocker(l), idempotency.Principal(shop))
		r := httptest.NewRequest("POST", path, strings.NewReader("{}"))
		r.Host = host
		r.Header.Set("Idempotency-Key", "k")
		got = nil
		idempotency.ByHeader("Idempotency-Key", opts...)(h).ServeHTTP(httptest.NewRecorder(), r)
		return got[0], got[1]
	}
	key, step := send("/orders", "a.example")
	if again, same := send("/orders", "a.example:80"); again != key || same != step {
		t.Errorf("a retry derives %s and %s, the first run %s and %s", again, same, key, step)
	}
	for _, other := range [][2]string{{"/refunds", "a.example"}, {"/orders", "b.example"}} {
		if k, s := send(other[0], other[1]); k == key || s != other[1]+other[0] {
			t.Errorf("%v derives the key %s and the step %q of another request", other, k, s)
		}
	}
	any1, _ := send("/any", "a.example", idempotency.AnyHost())
	if any2, _ := send("/any", "b.example", idempotency.AnyHost()); any1 != any2 {
		t.Errorf("with AnyHost a retry under another host derives %s, the first run %s", any2, any1)
	}
}

// A key that is made of content belongs to its route.
func TestScope_ByFunctionOnTwoRoutes(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := idempotency.WithLocker(memory(t))
	by := idempotency.By(func(*http.Request) (string, error) { return "42", nil }, l)
	template := idempotency.ByKey("{query.order}", l)
	mux := http.NewServeMux()
	mux.Handle("POST /orders", by(counter(&runs)))
	mux.Handle("POST /refunds", by(counter(&runs)))
	mux.Handle("POST /t/orders", template(counter(&runs)))
	mux.Handle("PUT /t/orders", template(counter(&runs)))
	s := serve(t, mux)
	s.post(t.Context(), "/orders", nil).want(t, 201, "run 1", false)
	s.post(t.Context(), "/refunds", nil).want(t, 201, "run 2", false)
	s.post(t.Context(), "/refunds", nil).want(t, 201, "run 2", true)
	s.post(t.Context(), "/t/orders?order=7", nil).want(t, 201, "run 3", false)
	r, err := http.NewRequest("PUT", s.url+"/t/orders?order=7", nil)
	must(t, err)
	r.Host = s.host
	resp, err := s.client.Do(r)
	must(t, err)
	_ = resp.Body.Close()
	if runs.Load() != 4 {
		t.Errorf("%d runs", runs.Load())
	}
}

// Two callers with one key never meet.
func TestScope_TwoPrincipals(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, memory(t), counter(&runs), idempotency.Principal(byUser), idempotency.AnyHost())
	s.order("a", "X-User", "ann").want(t, 201, "run 1", false)
	s.order("b", "X-User", "bob").want(t, 201, "run 2", false)
	s.order("a", "X-User", "ann").want(t, 201, "run 1", true)
}

// The payment service writes its refusals in its own format. The shop passes one on.
func TestDefaultFate_PassesOnOwnFormat(t *testing.T) {
	t.Parallel()
	for name, pass := range map[string]func(w http.ResponseWriter, resp *http.Response){
		"body": func(w http.ResponseWriter, resp *http.Response) {
			w.WriteHeader(resp.StatusCode)
			_, _ = io.Copy(w, resp.Body)
		},
		"header": func(w http.ResponseWriter, resp *http.Response) {
			for name, values := range resp.Header {
				w.Header()[name] = values
			}
			w.WriteHeader(resp.StatusCode)
		},
	} {
		l := testutil.Locker(t)
		var charges atomic.Int64
		charging, done := make(chan struct{}), make(chan struct{})
		payments := orders(t, l, func(w http.ResponseWriter, _ *http.Request) {
			charges.Add(1)
			close(charging)
			<-done
		}, idempotency.WithProblemWriter(func(w http.ResponseWriter, _ *http.Request, p idempotency.Refusal) {
			w.WriteHeader(p.Status)
			if name == "body" {
				fmt.Fprintf(w, "<error>%s</error>", p.Code)
			}
		}), idempotency.Service("payments"))
		go payments.order("")
		<-charging
		var asked atomic.Int64
		shop := orders(t, l, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, payments.url+"/orders/7", strings.NewReader(""))
			must(t, err)
			req.Host = payments.host
			req.Header.Set("Idempotency-Key", "k")
			resp, err := payments.client.Do(req)
			must(t, err)
			defer resp.Body.Close()
			pass(w, resp)
		})
		if a := shop.order(""); a.status != http.StatusConflict {
			t.Fatalf("%s: %d %s", name, a.status, a.body)
		}
		if a := shop.order(""); asked.Load() != 1 {
			t.Errorf("%s: the shop asked %d times; the retry got %d %s", name, asked.Load(), a.status, a.body)
		}
		close(done)
	}
}

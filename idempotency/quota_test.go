package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

func byUser(r *http.Request) string { return r.Header.Get("X-User") }

// keys are the keys in a node.
func keys(t testing.TB, n *testutil.Node) []string {
	t.Helper()
	all, err := n.Client().Keys(context.Background(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Two handlers of Ann run, one without its client. Her third request is refused, whatever its key; Ben's,
// and those of anonymous callers, are not.
func TestQuota_PerPrincipal(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	entered, open := make(chan struct{}, 8), make(chan struct{})
	s := orders(t, lockerOn(t, n), func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Stand") != "" {
			entered <- struct{}{}
			<-open
		}
		fmt.Fprint(w, "made")
	}, idempotency.Principal(byUser), idempotency.Quota(2))
	send := func(ctx context.Context, user, key string, header ...string) answer {
		return s.post(ctx, "/orders/7", nil,
			append([]string{"X-User", user, "Idempotency-Key", key}, header...)...)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	first, second := make(chan answer, 1), make(chan answer, 1)
	go func() { first <- send(ctx, "ann", "1", "X-Stand", "1") }()
	go func() { second <- send(t.Context(), "ann", "2", "X-Stand", "1") }()
	<-entered
	<-entered
	hangUp()
	<-first
	before := len(keys(t, n))
	for i := range 20 {
		a := send(t.Context(), "ann", fmt.Sprint("junk", i))
		a.refused(t, idempotency.CodeQuota)
		if a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	if after := keys(t, n); len(after) != before {
		t.Errorf("refused requests left keys behind: %q", after)
	}
	for i, user := range []string{"ben", "", "", ""} {
		send(t.Context(), user, fmt.Sprint("other", i)).want(t, 200, "made", false)
	}
	close(open)
	(<-second).want(t, 200, "made", false)
	ended(t, func() answer { return send(t.Context(), "ann", "1") }).want(t, 200, "made", true)
	for i := range 5 { // one after the other they are not too many
		send(t.Context(), "ann", fmt.Sprint("later", i)).want(t, 200, "made", false)
	}
}

// A request that passes two middlewares counts once.
func TestQuota_TwoMiddlewares(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	who, one := idempotency.Principal(byUser), idempotency.Quota(1)
	mux := http.NewServeMux()
	form, once := idempotency.RefuseRepeats(10*time.Millisecond, l, who, one), idempotency.ByHeader("Idempotency-Key", l, who, one)
	entered, open := make(chan struct{}, 1), make(chan struct{})
	mux.Handle("POST /orders/{id}", form(once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Stand") != "" {
			entered <- struct{}{}
			<-open
		}
		fmt.Fprint(w, "made")
	}))))
	s := serve(t, mux)
	first := make(chan answer, 1)
	go func() { first <- s.order("first", "X-User", "ann", "X-Stand", "1") }()
	<-entered
	s.order("second", "X-User", "ann", "Idempotency-Key", "k2").refused(t, idempotency.CodeQuota)
	close(open)
	(<-first).want(t, 200, "made", false)
	ended(t, func() answer { return s.order("third", "X-User", "ann", "Idempotency-Key", "k3") }).want(t, 200, "made", false)
}

// Every way out of a claim gives its place back.
func TestQuota_EveryEndFrees(t *testing.T) {
	t.Parallel()
	s := orders(t, shortLocker(t), func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-How") {
		case "panic":
			panic("boom")
		case "400", "504":
			var status int
			_, _ = fmt.Sscan(r.Header.Get("X-How"), &status)
			w.WriteHeader(status)
		case "flush":
			_ = http.NewResponseController(w).Flush()
		}
	}, idempotency.Principal(byUser), idempotency.Quota(1))
	for i, how := range []string{"panic", "400", "504", "flush", "200"} {
		for _, body := range []string{"", "", "another payload"} {
			a := s.post(t.Context(), "/orders/7", strings.NewReader(body),
				"X-User", "ann", "X-How", how, "Idempotency-Key", fmt.Sprint(i))
			if a.code() == idempotency.CodeQuota {
				t.Fatalf("after %s: %s", how, a.body)
			}
		}
	}
}

// Requests that are refused leave nothing behind, however many keys they have.
func TestJunkKeys_LeaveNothing(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	s := orders(t, lockerOn(t, n), func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
	}, idempotency.MaxRequestBody(8))
	for i := range 20 {
		a := s.post(t.Context(), "/orders/7", nil, "Idempotency-Key", fmt.Sprint("rejected", i))
		a.want(t, 422, "", false)
	}
	s.order("", "Idempotency-Key", `"open`).refused(t, idempotency.CodeKeyInvalid)
	s.order("123456789").refused(t, idempotency.CodeRequestTooLarge)
	check.Eventually(t, "nothing is left", func() bool { return len(keys(t, n)) == 0 })
}

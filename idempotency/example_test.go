package idempotency_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil/backendtest"
)

// exampleLocker returns a Locker in memory; a service has core.New(redisbackend.New(redisClient)).
func exampleLocker(opts ...core.Option) *core.Locker {
	locker, err := core.New(backendtest.Memory(), opts...)
	if err != nil {
		panic(err)
	}
	return locker
}

// send sends h a POST with these headers ("Name: value"), and returns what came back.
func send(h http.Handler, body string, headers ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

// code returns the status and the code of a refusal, or the status alone.
func code(w *httptest.ResponseRecorder) string {
	if _, rest, found := strings.Cut(w.Body.String(), `"code":"`); found {
		code, _, _ := strings.Cut(rest, `"`)
		return fmt.Sprint(w.Code, " ", code)
	}
	return fmt.Sprint(w.Code)
}

func created(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }

// A payment is made once, however often its client sends it.
func ExampleByHeader() {
	locker := exampleLocker()
	defer locker.Close()
	payments := 0
	once := idempotency.ByHeader("Idempotency-Key",
		idempotency.Require(),              // no payment without a key
		idempotency.Retain(7*24*time.Hour), // for so long a retry gets the answer of the first
		idempotency.Principal(func(r *http.Request) string { return r.Header.Get("X-User") }),
		idempotency.WithLocker(locker)) // or core.SetDefault(locker), once
	mux := http.NewServeMux()
	mux.Handle("POST /payments", once(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		payments++
		w.WriteHeader(http.StatusCreated)
	})))
	pay := func(body string, headers ...string) { fmt.Println(code(send(mux, body, headers...)), payments) }
	pay("700", "X-User: ann")
	pay("700", "X-User: ann", "Idempotency-Key: k1")
	pay("700", "X-User: ann", "Idempotency-Key: k1") // the retry
	pay("800", "X-User: ann", "Idempotency-Key: k1") // another payment
	pay("700", "X-User: ben", "Idempotency-Key: k1")
	// Output:
	// 400 idempotency_key_missing 0
	// 201 1
	// 201 1
	// 422 idempotency_key_reused 1
	// 201 2
}

// A second request waits until the first one is done.
func ExampleWait() {
	locker := exampleLocker()
	defer locker.Close()
	var second sync.WaitGroup
	var grab http.Handler
	grab = idempotency.LockByKey("order:7", idempotency.Wait(5*time.Second), idempotency.WithLocker(locker))(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			user := r.Header.Get("X-User")
			fmt.Println(user, "grabs")
			if user == "ann" {
				second.Go(func() { send(grab, "", "X-User: ben") })
				time.Sleep(20 * time.Millisecond)
			}
			fmt.Println(user, "is done")
		}))
	send(grab, "", "X-User: ann")
	second.Wait()
	// Output:
	// ann grabs
	// ann is done
	// ben grabs
	// ben is done
}

// A card that was declined may be tried again with the same key.
func ExampleDecide() {
	locker := exampleLocker()
	defer locker.Close()
	statuses := []int{http.StatusPaymentRequired, http.StatusCreated}
	pay := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker),
		idempotency.Decide(func(status int, header http.Header) idempotency.Fate {
			if status == http.StatusPaymentRequired {
				return idempotency.FreeKey
			}
			return idempotency.DefaultFate(status, header)
		}))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(statuses[0])
		statuses = statuses[1:]
	}))
	for range 3 {
		fmt.Println(code(send(pay, "700", "Idempotency-Key: k1")))
	}
	// Output:
	// 402
	// 201
	// 201
}

// A header of the application belongs to the answer, and is replayed with it.
func ExampleHeaders() {
	locker := exampleLocker()
	defer locker.Close()
	pay := idempotency.ByHeader("Idempotency-Key", idempotency.Headers("X-Order-Number"), idempotency.WithLocker(locker))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Order-Number", "7")
			w.WriteHeader(http.StatusCreated)
		}))
	for range 2 {
		h := send(pay, "", "Idempotency-Key: k1").Header()
		fmt.Printf("%q %q\n", h.Get("X-Order-Number"), h.Get("Idempotency-Replayed"))
	}
	// Output:
	// "7" ""
	// "7" "true"
}

// An answer that is too large to be recorded is sent; a retry is refused.
func ExampleMaxBody() {
	locker := exampleLocker()
	defer locker.Close()
	export := idempotency.ByHeader("Idempotency-Key", idempotency.MaxBody(1<<10), idempotency.WithLocker(locker))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 4<<10)) }))
	fmt.Println(send(export, "", "Idempotency-Key: k1").Body.Len())
	fmt.Println(code(send(export, "", "Idempotency-Key: k1")))
	// Output:
	// 4096
	// 409 idempotency_response_not_kept
}

// Answers are encrypted in Redis.
func ExampleWithEncryption() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	locker, err := core.New(redisbackend.New(client))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	block, err := aes.NewCipher(bytes.Repeat([]byte{1}, 32)) // a service reads its key from its secrets
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	order := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker),
		idempotency.WithEncryption(idempotency.EncryptionKey{ID: "2025", AEAD: aead}))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a book about roses") }))
	for range 2 {
		fmt.Println(send(order, "", "Idempotency-Key: k1").Body)
	}
	readable := false
	for _, key := range server.Keys() {
		value, _ := server.Get(key)
		readable = readable || strings.Contains(value, "roses")
	}
	fmt.Println("readable in Redis:", readable)
	// Output:
	// a book about roses
	// a book about roses
	// readable in Redis: false
}

// Refusals look as all errors of this shop do.
func ExampleWithProblemWriter() {
	locker := exampleLocker()
	defer locker.Close()
	pay := idempotency.ByHeader("Idempotency-Key", idempotency.Require(), idempotency.WithLocker(locker),
		idempotency.WithProblemWriter(func(w http.ResponseWriter, _ *http.Request, r idempotency.Refusal) {
			w.WriteHeader(r.Status)
			fmt.Fprintf(w, "error=%s again=%v", r.Code, r.Retryable)
		}))(http.HandlerFunc(created))
	fmt.Println(send(pay, "").Body)
	// Output: error=idempotency_key_missing again=false
}

// When Redis is down, comments are taken and payments are not.
func ExampleFailOpen() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer client.Close()
	locker, err := core.New(redisbackend.New(client))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	server.Close() // Redis is down

	pay := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker))
	comment := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker), idempotency.FailOpen())
	fmt.Println(code(send(pay(http.HandlerFunc(created)), "", "Idempotency-Key: k1")))
	fmt.Println(code(send(comment(http.HandlerFunc(created)), "", "Idempotency-Key: k1")))
	// Output:
	// 503 lock_unavailable
	// 201
}

// The charge was sent, and then the process had trouble. A retry asks the provider what happened.
func ExampleRecover() {
	locker := exampleLocker(core.WithTTL(50 * time.Millisecond))
	defer locker.Close()
	pay := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker), idempotency.Wait(time.Minute),
		idempotency.Recover(func(w http.ResponseWriter, r *http.Request, _ idempotency.Run) idempotency.Recovery {
			key, err := idempotency.DeriveKey(r.Context(), "charge") // the key of the first try
			if err != nil || key == "" {
				return idempotency.StillUnknown
			}
			fmt.Fprint(w, "paid, says the provider")
			return idempotency.Answered
		}))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusGatewayTimeout)
	}))
	for range 3 {
		w := send(pay, "700", "Idempotency-Key: k1")
		fmt.Println(w.Code, w.Body, w.Header()["Idempotency-Replayed"])
	}
	// Output:
	// 504  []
	// 200 paid, says the provider []
	// 200 paid, says the provider [true]
}

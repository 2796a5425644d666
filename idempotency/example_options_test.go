package idempotency_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// The key is made of two values of the request, and both must be there.
func ExampleByKey() {
	locker := exampleLocker()
	defer locker.Close()
	once := idempotency.ByKey("{header.X-Shop}:{json.order}", idempotency.WithLocker(locker), idempotency.Methods("POST"),
		idempotency.MaxRequestBody(1<<10), idempotency.MaxRun(time.Minute), idempotency.Service("payments"))
	pay := once(http.HandlerFunc(created))
	for _, shop := range []string{"north", "north", ""} {
		w := send(pay, `{"order":7}`, "Content-Type: application/json", "X-Shop: "+shop)
		fmt.Println(code(w), w.Header().Get("Idempotency-Replayed") == "true")
	}
	// Output:
	// 201 false
	// 201 true
	// 400 idempotency_key_invalid false
}

// A function makes the key. The fingerprint covers only what the payment is about.
func ExampleBy() {
	locker := exampleLocker()
	defer locker.Close()
	key := func(r *http.Request) (string, error) { return core.Join("batch", r.Header.Get("X-Batch")), nil }
	about := func(_ *http.Request, body []byte) []byte {
		amount, _, _ := bytes.Cut(body, []byte(" "))
		return amount
	}
	pay := idempotency.By(key, idempotency.Fingerprint(about), idempotency.WithLocker(locker))(http.HandlerFunc(created))
	fmt.Println(code(send(pay, "700 at 10:00", "X-Batch: b1")))
	fmt.Println(code(send(pay, "700 at 10:01", "X-Batch: b1")))
	fmt.Println(code(send(pay, "900 at 10:02", "X-Batch: b1")))
	// Output:
	// 201
	// 201
	// 422 idempotency_key_reused
}

// Two who export the same report do so one after the other.
func ExampleLockBy() {
	locker := exampleLocker()
	defer locker.Close()
	key := func(r *http.Request) (string, error) { return core.Join("report", r.URL.Path), nil }
	export := idempotency.LockBy(key, idempotency.WithLocker(locker))(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			token, err := idempotency.Token(r.Context()) // for a store that refuses smaller ones
			fmt.Println(token > 0, err)
		}))
	send(export, "")
	// Output: true <nil>
}

// A form without a key: the same submission is refused for a while.
func ExampleRefuseRepeats() {
	locker := exampleLocker()
	defer locker.Close()
	submit := idempotency.RefuseRepeats(10*time.Second, idempotency.WithLocker(locker))(http.HandlerFunc(created))
	fmt.Println(code(send(submit, "order=7")))
	fmt.Println(code(send(submit, "order=7")))
	fmt.Println(code(send(submit, "order=8")))
	// Output:
	// 201
	// 409 duplicate_submit
	// 201
}

// The handler knows that it did nothing, although it answers 500.
func ExampleNothingDone() {
	locker := exampleLocker()
	defer locker.Close()
	down := true
	pay := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker))(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if down {
				idempotency.NothingDone(r.Context())
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			idempotency.RetainFor(r.Context(), 7*24*time.Hour)
			w.WriteHeader(http.StatusCreated)
		}))
	fmt.Println(code(send(pay, "700", "Idempotency-Key: k1")))
	down = false
	fmt.Println(code(send(pay, "700", "Idempotency-Key: k1")))
	// Output:
	// 500
	// 201
}

// The handler's effects are all in one transaction, so it may run again after an error.
func ExampleRunAgain() {
	locker := exampleLocker()
	defer locker.Close()
	runs := 0
	pay := idempotency.ByHeader("Idempotency-Key", idempotency.RunAgain(), idempotency.WithLocker(locker))(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			if runs++; runs == 1 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}))
	fmt.Println(code(send(pay, "700", "Idempotency-Key: k1")), code(send(pay, "700", "Idempotency-Key: k1")), runs)
	// Output: 500 200 2
}

// The provider's key is the same in every run of the request.
func ExampleDeriveKey() {
	locker := exampleLocker()
	defer locker.Close()
	var keys []string
	pay := idempotency.ByHeader("Idempotency-Key", idempotency.RunAgain(), idempotency.WithLocker(locker))(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			key, err := idempotency.DeriveKey(r.Context(), "charge")
			if err != nil {
				panic(err)
			}
			keys = append(keys, key)
			w.WriteHeader(http.StatusInternalServerError)
		}))
	send(pay, "700", "Idempotency-Key: k1")
	send(pay, "700", "Idempotency-Key: k1")
	fmt.Println(len(keys[0]), keys[0] == keys[1])
	_, err := idempotency.DeriveKey(context.Background(), "charge")
	fmt.Println(errors.Is(err, idempotency.ErrNoClaim))
	// Output:
	// 32 true
	// true
}

// Outside of a claim there is no token.
func ExampleToken() {
	_, err := idempotency.Token(context.Background())
	fmt.Println(errors.Is(err, idempotency.ErrNoClaim))
	// Output: true
}

// The service stops: first the server, then the handlers whose clients hung up.
func ExampleShutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	server := &http.Server{}
	fmt.Println(server.Shutdown(ctx), idempotency.Shutdown(ctx))
	// Output: <nil> <nil>
}

// Encryption is being turned on: old records are read as they are.
func ExampleReadPlain() {
	locker := exampleLocker()
	defer locker.Close()
	block, err := aes.NewCipher(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	before := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker))(http.HandlerFunc(created))
	after := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker), idempotency.ReadPlain(),
		idempotency.WithEncryption(idempotency.EncryptionKey{ID: "2026-11", AEAD: aead}))(http.HandlerFunc(created))
	send(before, "700", "Idempotency-Key: k1")
	fmt.Println(send(after, "700", "Idempotency-Key: k1").Header().Get("Idempotency-Replayed"))
	// Output: true
}

// This client writes the time into each try: what makes it the same payment is the amount.
func ExampleFingerprint() {
	locker := exampleLocker()
	defer locker.Close()
	amount := func(_ *http.Request, body []byte) []byte {
		var payment struct{ Cents int }
		_ = json.Unmarshal(body, &payment) // a body that is no JSON has no amount: the handler refuses it
		return fmt.Append(nil, payment.Cents)
	}
	pay := idempotency.ByHeader("Idempotency-Key", idempotency.Fingerprint(amount), idempotency.WithLocker(locker))(http.HandlerFunc(created))
	for _, body := range []string{`{"cents":700,"sent":"10:00"}`, `{"cents":700,"sent":"10:01"}`, `{"cents":900,"sent":"10:02"}`} {
		fmt.Println(code(send(pay, body, "Idempotency-Key: k1")))
	}
	// Output:
	// 201
	// 201
	// 422 idempotency_key_reused
}

// A custom text for one of the refusals.
func ExampleRefusalOf() {
	refusal := idempotency.RefusalOf(idempotency.CodeLockLost)
	fmt.Println(refusal.Status, refusal.Title)
	// Output: 409 The lock was lost while the request ran
}

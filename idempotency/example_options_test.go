package idempotency_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// exampleLocker is a Locker in memory; a service has core.New(redisbackend.New(redisClient)).
func exampleLocker() *core.Locker {
	locker, err := core.New(testutil.Memory())
	if err != nil {
		panic(err)
	}
	return locker
}

// once answers a request: it runs work, or returns what the first run with the key answered.
func once(c *idempotency.Claims, key string, work func(ctx context.Context) string) (string, error) {
	ctx := context.Background()
	out, err := c.Begin(ctx, key, idempotency.Fingerprint{Payload: idempotency.Digest([]byte("the request"))})
	switch {
	case err != nil:
		return "", err
	case out.Unprotected != nil:
		return work(ctx), nil
	case out.Replay != nil:
		return string(out.Replay.Body), nil
	}
	defer out.Claim.Abandon(ctx)
	answer := work(out.Claim.Context())
	return answer, out.Claim.Complete(ctx, &idempotency.Record{Status: 200, Body: []byte(answer)})
}

// A retry that comes while the first request runs waits for its answer.
func ExampleNew() {
	locker := exampleLocker()
	defer locker.Close()
	claims := idempotency.New(locker,
		idempotency.WithWait(5*time.Second),       // by default a retry that comes too soon is ErrInFlight
		idempotency.WithRetention(7*24*time.Hour), // by default 24 h
		idempotency.WithTransport("http"),         // a label of metrics and spans
		idempotency.WithCompression(1<<10))        // records over 1 KiB

	running, retried := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(retried)
		<-running
		fmt.Println(once(claims, "ann/pay/k1", func(context.Context) string { return "paid again" }))
	}()
	fmt.Println(once(claims, "ann/pay/k1", func(context.Context) string {
		close(running)
		return "paid"
	}))
	<-retried
	// Output:
	// paid <nil>
	// paid <nil>
}

// What runs for a request finds its claim in the context: its key, and a token that grows with each claim on it.
func ExampleFromContext() {
	locker := exampleLocker()
	defer locker.Close()
	claims := idempotency.New(locker)
	pay := func(ctx context.Context) string {
		claim, ok := idempotency.FromContext(ctx)
		if !ok {
			return "unprotected"
		}
		token, err := claim.Token(ctx)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(claim.Key(), " ", token > 0, " ", idempotency.Carries(ctx, "ann/pay/k1"))
	}
	fmt.Println(once(claims, "ann/pay/k1", pay))
	fmt.Println(pay(context.Background()))
	// Output:
	// ann/pay/k1 true true <nil>
	// unprotected
}

// An answer that was streamed cannot be kept: a retry is told that it ran, and nothing runs twice.
func ExampleTombstone() {
	locker := exampleLocker()
	defer locker.Close()
	claims := idempotency.New(locker)
	ctx := context.Background()
	for range 2 {
		out, err := claims.Begin(ctx, "ann/export/k1", idempotency.Fingerprint{})
		if err != nil {
			panic(err)
		}
		if out.Replay != nil {
			fmt.Println("ran before, the answer was not kept:", out.Replay.NotKept)
			continue
		}
		fmt.Println("a long stream") // sent while it is made
		if err := out.Claim.Complete(ctx, idempotency.Tombstone()); err != nil {
			panic(err)
		}
	}
	// Output:
	// a long stream
	// ran before, the answer was not kept: true
}

// Where running twice does less harm than not running, requests run although Redis is down.
func ExampleWithFailOpen() {
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
	work := func(context.Context) string { return "done" }

	_, err = once(idempotency.New(locker), "ann/mail/k1", work)
	fmt.Println(errors.Is(err, core.ErrUnavailable))
	fmt.Println(once(idempotency.New(locker, idempotency.WithFailOpen()), "ann/mail/k1", work))
	// Output:
	// true
	// done <nil>
}

// exampleKey is an encryption key; a service reads its 32 bytes from where it keeps its secrets.
func exampleKey(id string, b byte) idempotency.EncryptionKey {
	block, err := aes.NewCipher(bytes.Repeat([]byte{b}, 32))
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return idempotency.EncryptionKey{ID: id, AEAD: aead}
}

// The key changes, and the records of the old one can still be read.
func ExampleWithEncryption() {
	locker := exampleLocker()
	defer locker.Close()
	first, second := exampleKey("2024", 1), exampleKey("2025", 2)
	pay := func(context.Context) string { return "paid" }
	again := func(context.Context) string { return "paid again" }

	fmt.Println(once(idempotency.New(locker, idempotency.WithEncryption(first)), "k1", pay))
	fmt.Println(once(idempotency.New(locker, idempotency.WithEncryption(second, first)), "k1", again))
	_, err := once(idempotency.New(locker), "k1", again) // who has no key reads nothing, and runs nothing
	fmt.Println(errors.Is(err, idempotency.ErrRecord))
	// Output:
	// paid <nil>
	// paid <nil>
	// true
}

// While encryption is being switched on, records from before it are read.
func ExampleReadPlain() {
	locker := exampleLocker()
	defer locker.Close()
	key := exampleKey("2025", 1)
	pay := func(context.Context) string { return "paid" }
	again := func(context.Context) string { return "paid again" }

	fmt.Println(once(idempotency.New(locker), "k1", pay))
	_, err := once(idempotency.New(locker, idempotency.WithEncryption(key)), "k1", again)
	fmt.Println(errors.Is(err, idempotency.ErrRecord))
	fmt.Println(once(idempotency.New(locker, idempotency.WithEncryption(key), idempotency.ReadPlain()), "k1", again))
	// Output:
	// paid <nil>
	// true
	// paid <nil>
}

// A record that nobody can read any more does not stand in the way: the request runs again.
func ExampleRunUnreadable() {
	locker := exampleLocker()
	defer locker.Close()
	render := func(context.Context) string { return "a page" }

	lost := idempotency.WithEncryption(exampleKey("lost", 1))
	fmt.Println(once(idempotency.New(locker, lost), "k1", render))
	fmt.Println(once(idempotency.New(locker, idempotency.RunUnreadable()), "k1", func(context.Context) string { return "a new page" }))
	// Output:
	// a page <nil>
	// a new page <nil>
}

// For an adapter of one's own: what a client sent as its key, in quotes or without.
func ExampleParseKey() {
	fmt.Println(idempotency.ParseKey([]string{`"8e03978e-40d5"`}))
	fmt.Println(idempotency.ParseKey([]string{`8e03978e-40d5`}))
	_, err := idempotency.ParseKey(nil)
	fmt.Println(errors.Is(err, idempotency.ErrNoKey))
	_, err = idempotency.ParseKey([]string{"two, keys"})
	fmt.Println(err)
	// Output:
	// 8e03978e-40d5 <nil>
	// 8e03978e-40d5 <nil>
	// true
	// the header was sent more than once, or is a list
}

// For a client of one's own.
func ExampleFormatKey() {
	value, err := idempotency.FormatKey("8e03978e-40d5")
	if err != nil {
		panic(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/orders", nil)
	r.Header.Set("Idempotency-Key", value)
	fmt.Println(r.Header.Get("Idempotency-Key"))
	// Output: "8e03978e-40d5"
}

// For an adapter of one's own that shares keys with ginlock and grpclock: see their option Space.
func ExampleSpaceKey() {
	fmt.Println(idempotency.SpaceKey("payments", "ann", "k1") == idempotency.SpaceKey("payments", "ben", "k1"))
	ann := idempotency.Credentials([]string{"Bearer a"}, nil, nil) // where nothing else says who asks
	ben := idempotency.Credentials([]string{"Bearer b"}, nil, nil)
	fmt.Println(ann == ben)
	// Output:
	// false
	// false
}

// A job that may be restarted stores its key before the first try: after a crash the server recognises the payment.
func ExampleContextWithKey() {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Header.Get("X-Request-Id"))
	}))
	defer server.Close()
	client := &http.Client{Transport: idempotency.NewTransport(nil,
		idempotency.WithHeader("X-Request-Id"),
		idempotency.WithAttempts(6),
		idempotency.WithPause(50*time.Millisecond, 2*time.Second))}
	defer client.CloseIdleConnections()

	stored := "payment-7" // or idempotency.NewKey(), with the job
	ctx := idempotency.ContextWithKey(context.Background(), stored)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(`{"cents":700}`))
	if err != nil {
		panic(err)
	}
	resp, err := client.Do(r)
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	fmt.Println(idempotency.KeyFromContext(ctx))
	one, other := idempotency.NewKey(), idempotency.NewKey()
	fmt.Println(one == other)
	// Output:
	// "payment-7"
	// payment-7 true
	// false
}

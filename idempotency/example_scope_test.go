package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/onelane/onelane/idempotency"
)

// sendTo sends a payment to a host, as a balancer or a proxy does.
func sendTo(h http.Handler, host string, header ...string) {
	r := httptest.NewRequest("POST", "/payments", strings.NewReader("7 EUR"))
	r.Host = host
	r.Header.Set("Idempotency-Key", "k")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Printf("%s, replayed: %t\n", code(w), w.Header().Get("Idempotency-Replayed") == "true")
}

func ExampleAnyHost() {
	pay := http.HandlerFunc(created)
	locker := exampleLocker()
	defer locker.Close()
	byAddress := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker),
		idempotency.Principal(anyone), idempotency.AnyHost())(pay)
	sendTo(byAddress, "10.0.0.7:8080")
	sendTo(byAddress, "10.0.0.8:8080") // the retry reaches another instance
	// Output:
	// 201, replayed: false
	// 201, replayed: true
}

func ExampleFingerprintHeaders() {
	pay := http.HandlerFunc(created)
	locker := exampleLocker()
	defer locker.Close()
	byTenant := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker),
		idempotency.Principal(anyone), idempotency.FingerprintHeaders("X-Tenant"))(pay)
	sendTo(byTenant, "pay.example.com", "X-Tenant", "a")
	sendTo(byTenant, "pay.example.com", "X-Tenant", "b")
	// Output:
	// 201, replayed: false
	// 422 idempotency_key_reused, replayed: false
}

// Two middlewares that take the same key are found when the server starts.
func ExampleCheck() {
	once := idempotency.ByHeader("Idempotency-Key")
	mux := http.NewServeMux()
	mux.Handle("POST /payments", once(http.HandlerFunc(created)))
	fmt.Println(idempotency.Check(once(mux), "POST /payments"))
	// Output:
	// idempotency: POST /payments cannot be protected: ByHeader("Idempotency-Key") and, inside of it, ByHeader("Idempotency-Key") take the same key: keep one of them
}

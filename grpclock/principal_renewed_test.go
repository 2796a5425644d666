package grpclock_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// The name stays when the certificate is renewed: the authority may list the names in another order, and
// a pod that restarts has another address. Its retry must not run again.
func TestPrincipal_RenewedWithoutACommonName(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	a := newAuthority(t, "root")
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	s := serve(t, &orders{handle: counter(&runs)},
		grpc.Creds(credentials.NewTLS(&tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, Certificates: []tls.Certificate{a.pair(&x509.Certificate{DNSNames: []string{"shop"}})}})),
		grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))))
	as := func(c x509.Certificate) answer {
		certs := []tls.Certificate{a.pair(&c)}
		client := testpb.NewOrdersClient(s.dial(grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "shop", Certificates: certs}))))
		return ask(t.Context(), client.Create, &request{}, idempotencyKey, "k")
	}
	one, two := []string{"payments", "payments.bank.svc"}, []string{"payments.bank.svc", "payments"}
	first, second := []net.IP{net.IPv4(10, 0, 0, 7)}, []net.IP{net.IPv4(10, 0, 0, 9)}
	for i, subject := range []pkix.Name{{Organization: []string{"bank"}}, {}} {
		run := int64(i + 1)
		as(x509.Certificate{Subject: subject, DNSNames: one, IPAddresses: first}).want(t, run, false)
		as(x509.Certificate{Subject: subject, DNSNames: two, IPAddresses: first}).want(t, run, true)  // another order
		as(x509.Certificate{Subject: subject, DNSNames: one, IPAddresses: second}).want(t, run, true) // another pod
	}
}

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

// certified returns how a caller with a certificate asks for the key k at a server that counts its
// runs. Each call gets a new certificate of the same authority.
func certified(t *testing.T) func(x509.Certificate) answer {
	t.Helper()
	var runs atomic.Int64
	a := newAuthority(t, "root")
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	s := serve(t, &orders{handle: counter(&runs)},
		grpc.Creds(credentials.NewTLS(&tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, Certificates: []tls.Certificate{a.pair(&x509.Certificate{DNSNames: []string{"shop"}})}})),
		grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))))
	return func(c x509.Certificate) answer {
		certs := []tls.Certificate{a.pair(&c)}
		client := testpb.NewOrdersClient(s.dial(grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "shop", Certificates: certs}))))
		return ask(t.Context(), client.Create, &request{}, idempotencyKey, "k")
	}
}

// Many authorities give all workloads one subject, such as O=bank, and name each one in the alternative
// names only. Two of them are two callers.
func TestPrincipal_SubjectWithoutACommonName(t *testing.T) {
	t.Parallel()
	as := certified(t)
	bank := pkix.Name{Organization: []string{"bank"}}
	for i, c := range []x509.Certificate{
		{Subject: bank, DNSNames: []string{"payments.bank.internal"}},
		{Subject: bank, DNSNames: []string{"reports.bank.internal"}},
		{Subject: bank, EmailAddresses: []string{"ann@bank"}},
		{Subject: bank, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}},
		{Subject: bank, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 2)}},
		{Subject: bank},
	} {
		as(c).want(t, int64(i+1), false)
		as(c).want(t, int64(i+1), true) // with a new certificate
	}
}

// The name stays when the certificate is renewed: the authority may list the names in another order, and
// a pod that restarts has another address. Its retry must not run again.
func TestPrincipal_RenewedWithoutACommonName(t *testing.T) {
	t.Parallel()
	as := certified(t)
	one, two := []string{"payments", "payments.bank.svc"}, []string{"payments.bank.svc", "payments"}
	first, second := []net.IP{net.IPv4(10, 0, 0, 7)}, []net.IP{net.IPv4(10, 0, 0, 9)}
	for i, subject := range []pkix.Name{{Organization: []string{"bank"}}, {}} {
		run := int64(i + 1)
		as(x509.Certificate{Subject: subject, DNSNames: one, IPAddresses: first}).want(t, run, false)
		as(x509.Certificate{Subject: subject, DNSNames: two, IPAddresses: first}).want(t, run, true)  // another order
		as(x509.Certificate{Subject: subject, DNSNames: one, IPAddresses: second}).want(t, run, true) // another pod
	}
}

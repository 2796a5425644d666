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

// Many authorities give all workloads one subject, such as O=bank, and name each one in the alternative
// names only. Two of them are two callers.
func TestPrincipal_SubjectWithoutACommonName(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	a := newAuthority(t, "root")
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	s := serve(t, &orders{handle: counter(&runs)},
		grpc.Creds(credentials.NewTLS(&tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, Certificates: []tls.Certificate{a.pair(&x509.Certificate{DNSNames: []string{"shop"}})}})),
		grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))))
	bank := pkix.Name{Organization: []string{"bank"}}
	for i, c := range []*x509.Certificate{
		{Subject: bank, DNSNames: []string{"payments.bank.internal"}},
		{Subject: bank, DNSNames: []string{"reports.bank.internal"}},
		{Subject: bank, EmailAddresses: []string{"ann@bank"}},
		{Subject: bank, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}},
		{Subject: bank, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 2)}},
		{Subject: bank},
	} {
		for _, replayed := range []bool{false, true} { // a new certificate each time
			certs := []tls.Certificate{a.pair(c)}
			client := testpb.NewOrdersClient(s.dial(grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "shop", Certificates: certs}))))
			ask(t.Context(), client.Create, &request{}, idempotencyKey, "k").want(t, int64(i+1), replayed)
		}
	}
}

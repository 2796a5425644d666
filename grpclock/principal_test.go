package grpclock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

func TestPrincipal_KeysAreApart(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs), grpclock.Principal(byUser))
	s.create("k", &request{}, "user", "ann").want(t, 1, false)
	s.create("k", &request{}, "user", "bob").want(t, 2, false)
	s.create("k", &request{}, "user", "ann").want(t, 1, true)
	// Another token of the same user is a retry; and no name imitates another's key.
	s.create("k", &request{}, "user", "ann", "authorization", "new").want(t, 1, true)
	s.create("k", &request{}, "user", "ann:grpc").want(t, 3, false)
	// Another payload of somebody else is none of ann's business.
	s.create("k", &request{Quantity: 1}, "user", "eve").want(t, 4, false)
}

func TestPrincipal_AnonymousCredentials(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs))
	s.create("k", &request{}, "authorization", "Bearer a").want(t, 1, false)
	s.create("k", &request{}, "authorization", "Bearer a").want(t, 1, true)
	for _, md := range [][]string{{"authorization", "Bearer b"}, nil, {"authorization", "Bearer a", "authorization", "Bearer a"}, {"authorization", "Bearer a", "cookie", "x"}, {"authorization", "Bearer a", "x-api-key", "x"}} {
		a := s.create("k", &request{}, md...)
		a.wantRefusal(t, codes.FailedPrecondition, reasonCredentialsChanged)
		// The refusal does not reveal whether the payload is the same.
		b := s.create("k", &request{Quantity: 9}, md...)
		if b.wantRefusal(t, codes.FailedPrecondition, reasonCredentialsChanged); a.err.Error() != b.err.Error() {
			t.Errorf("%v, %v", a.err, b.err)
		}
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// A client that may not come in does not get a replay either.
func TestPrincipal_AuthenticationFirst(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	var revoked atomic.Bool
	auth := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if revoked.Load() {
			return nil, status.Error(codes.Unauthenticated, "revoked")
		}
		return handler(ctx, req)
	}
	s := serve(t, &orders{handle: counter(&runs)}, grpc.ChainUnaryInterceptor(auth, grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))))
	s.create("k", &request{}).want(t, 1, false)
	revoked.Store(true)
	s.create("k", &request{}).wantCode(t, codes.Unauthenticated, false)
}

// authority issues certificates.
type authority struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB, name string) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) issue(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<60))
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return made, key
}

func (a *authority) pair(c *x509.Certificate) tls.Certificate {
	cert, key := a.issue(c)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

func TestPrincipal_TLS(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	a, stranger := newAuthority(t, "root"), newAuthority(t, "root")
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	for name, mode := range map[string]tls.ClientAuthType{"verified": tls.VerifyClientCertIfGiven, "not verified": tls.RequestClientCert} {
		t.Run(name, func(t *testing.T) {
			runs.Store(0)
			s := serve(t, &orders{handle: counter(&runs)},
				grpc.Creds(credentials.NewTLS(&tls.Config{ClientAuth: mode, ClientCAs: pool, Certificates: []tls.Certificate{a.pair(&x509.Certificate{DNSNames: []string{"shop"}})}})),
				grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))))
			as := func(certs ...tls.Certificate) func(md ...string) answer {
				client := testpb.NewOrdersClient(s.dial(grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "shop", Certificates: certs}))))
				return func(md ...string) answer {
					return ask(t.Context(), client.Create, &request{}, append(md, idempotencyKey, "k")...)
				}
			}
			uri := func(u string) *url.URL { p, _ := url.Parse(u); return p }
			ann := &x509.Certificate{Subject: pkix.Name{CommonName: "ann"}}
			as(a.pair(ann))().want(t, 1, false)
			if mode == tls.RequestClientCert { // nobody checked who that is: all are anonymous
				as(stranger.pair(ann))().want(t, 1, true)
				as()().want(t, 1, true)
				as(a.pair(ann))("authorization", "other").wantRefusal(t, codes.FailedPrecondition, reasonCredentialsChanged)
				return
			}
			as(a.pair(ann))().want(t, 1, true) // a new certificate, the same name
			// It may be that of a proxy, and another user behind it.
			as(a.pair(ann))("authorization", "other").wantRefusal(t, codes.FailedPrecondition, reasonCredentialsChanged)
			for i, c := range []*x509.Certificate{
				{Subject: pkix.Name{CommonName: "bob"}},
				{URIs: []*url.URL{uri("spiffe://shop/ann")}, Subject: pkix.Name{CommonName: "ann"}},
				{URIs: []*url.URL{uri("spiffe://shop/bob")}, Subject: pkix.Name{CommonName: "ann"}},
				{DNSNames: []string{"ann"}},
				{EmailAddresses: []string{"ann@shop"}},
				{}, // no name at all: its key
				{},
			} {
				pair := a.pair(c)
				as(pair)().want(t, int64(i+2), false)
				as(pair)().want(t, int64(i+2), true)
			}
			as()().want(t, 9, false)
		})
	}
}

// Two authorities may give one name to two callers.
func TestPrincipal_TwoAuthorities(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	a, b := newAuthority(t, "first root"), newAuthority(t, "second root")
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	pool.AddCert(b.cert)
	s := serve(t, &orders{handle: counter(&runs)},
		grpc.Creds(credentials.NewTLS(&tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, Certificates: []tls.Certificate{a.pair(&x509.Certificate{DNSNames: []string{"shop"}})}})),
		grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))))
	spiffe := []*url.URL{{Scheme: "spiffe", Host: "shop", Path: "/ann"}}
	for i, c := range []*x509.Certificate{{Subject: pkix.Name{CommonName: "ann"}}, {URIs: spiffe}} {
		for j, issuer := range []*authority{a, b} {
			certs := []tls.Certificate{issuer.pair(c)}
			client := testpb.NewOrdersClient(s.dial(grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "shop", Certificates: certs}))))
			for _, replayed := range []bool{false, true} {
				ask(t.Context(), client.Create, &request{}, idempotencyKey, "k").want(t, int64(2*i+j+1), replayed)
			}
		}
	}
}

// Names of a directory have several common names, such as CN=ann,CN=Users.
func TestPrincipal_TwoCommonNames(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	users := func(name string) pkix.Name {
		cn := asn1.ObjectIdentifier{2, 5, 4, 3}
		return pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{{Type: cn, Value: name}, {Type: cn, Value: "Users"}}}
	}
	pool := x509.NewCertPool()
	var issuers []*authority
	for _, name := range []string{"first root", "second root"} {
		a := &authority{t: t}
		a.cert, a.key = a.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, Subject: users(name), KeyUsage: x509.KeyUsageCertSign})
		pool.AddCert(a.cert)
		issuers = append(issuers, a)
	}
	s := serve(t, &orders{handle: counter(&runs)},
		grpc.Creds(credentials.NewTLS(&tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, Certificates: []tls.Certificate{issuers[0].pair(&x509.Certificate{DNSNames: []string{"shop"}})}})),
		grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))))
	run := int64(0)
	for _, issuer := range issuers {
		for _, name := range []string{"ann", "bob"} {
			run++
			for _, replayed := range []bool{false, true} { // a new certificate each time
				certs := []tls.Certificate{issuer.pair(&x509.Certificate{Subject: users(name)})}
				client := testpb.NewOrdersClient(s.dial(grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "shop", Certificates: certs}))))
				ask(t.Context(), client.Create, &request{}, idempotencyKey, "k").want(t, run, replayed)
			}
		}
	}
}

// An anonymous caller, and one without a name, cannot take a key that is made of the principal.
func TestPrincipal_Template(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, &orders{handle: counter(&runs)}, grpc.UnaryInterceptor(grpclock.LockByKey("cart:{principal}", idempotency.WithLocker(l))))
	ask(t.Context(), s.Create, &request{}).wantRefusal(t, codes.Unauthenticated, reasonPrincipalMissing)
	if runs.Load() != 0 {
		t.Error("it ran")
	}
}

// The wiring may come before the Locker.
func TestDefaultLocker(t *testing.T) {
	var runs atomic.Int64
	s := serve(t, &orders{handle: counter(&runs)}, grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key")))
	s.create("k", &request{}).wantRefusal(t, codes.Unavailable, reasonLockUnavailable)
	for run := range int64(2) { // and it may be set again
		core.SetDefault(testutil.Locker(t))
		t.Cleanup(func() { core.SetDefault(nil) })
		s.create("k", &request{}).want(t, run+1, false)
		s.create("k", &request{}).want(t, run+1, true)
	}
}

// grpc-gateway forwards the header Cookie under this name.
func TestPrincipal_CookieOfAGateway(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs))
	s.create("k", &request{}, "grpcgateway-cookie", "session=ann").want(t, 1, false)
	s.create("k", &request{}, "grpcgateway-cookie", "session=ann").want(t, 1, true)
	s.create("k", &request{}, "grpcgateway-cookie", "session=eve").
		wantRefusal(t, codes.FailedPrecondition, reasonCredentialsChanged)
}

package etcdbackend_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// connect returns a client that is closed with the test.
func connect(t *testing.T, config clientv3.Config) *clientv3.Client {
	t.Helper()
	config.Logger, config.DialTimeout = zap.NewNop(), 30*time.Second
	client, err := clientv3.New(config)
	ok(t, "clientv3.New", err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// user adds a user, whose password is the name, and a role for the user.
func user(t *testing.T, admin *clientv3.Client, name string) {
	t.Helper()
	_, err := admin.UserAdd(t.Context(), name, name)
	ok(t, "UserAdd", err)
	_, err = admin.RoleAdd(t.Context(), name)
	ok(t, "RoleAdd", err)
	_, err = admin.UserGrantRole(t.Context(), name, name)
	ok(t, "UserGrantRole", err)
}

// worksOn goes through the verbs that write.
func worksOn(t *testing.T, client *clientv3.Client) {
	t.Helper()
	l := locker(t, client, core.WithTTL(time.Minute))
	k, err := l.Acquire(t.Context(), "k")
	ok(t, "Acquire", err)
	ok(t, "Extend", k.Extend(t.Context(), time.Hour))
	ok(t, "Release", k.Release(t.Context()))
	k, err = l.Acquire(t.Context(), "k")
	ok(t, "Acquire", err)
	ok(t, "Seal", k.Seal(t.Context(), nil, time.Hour))
	ok(t, "Unseal", l.Unseal(t.Context(), "k"))
}

// refused checks that Acquire says what to do, and does not wait for the end of an outage.
func refused(t *testing.T, client *clientv3.Client, advice string) {
	t.Helper()
	l := locker(t, client, core.WithOutageWait(time.Hour))
	_, err := l.Acquire(t.Context(), "k", core.WithWait(time.Minute))
	u, is := errors.AsType[*core.UnavailableError](err)
	if !is || !u.Permanent || !strings.Contains(err.Error(), advice) {
		t.Errorf("Acquire: %v, want a permanent error that says %q", err, advice)
	}
}

// A user needs only the permission on the keys. Without it, or without the right password, Acquire
// fails at once and says what to do.
func TestAuth(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t, "--bcrypt-cost", "4")
	if etcd == nil {
		return
	}
	anonymous := etcd.Client()
	for _, name := range []string{"root", "service", "stranger"} {
		user(t, anonymous, name)
	}
	_, err := anonymous.RoleGrantPermission(t.Context(), "service", "onelane:",
		clientv3.GetPrefixRangeEnd("onelane:"), clientv3.PermissionType(clientv3.PermReadWrite))
	ok(t, "RoleGrantPermission", err)
	_, err = anonymous.AuthEnable(t.Context())
	ok(t, "AuthEnable", err)
	as := func(name string) *clientv3.Client {
		t.Helper()
		return connect(t, clientv3.Config{
			Endpoints: []string{etcd.Addr()}, Username: name, Password: name,
		})
	}
	service := as("service")
	worksOn(t, service)
	refused(t, anonymous, "set the client's Username and Password")
	refused(t, as("stranger"), "read and write permission on the prefix of the keys")

	_, err = as("root").UserChangePassword(t.Context(), "service", "changed")
	ok(t, "UserChangePassword", err)
	refused(t, service, "check the client's Username and Password")
}

// Both sides show certificates of the same authority. etcd refuses a client without one.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	certificate, key := ca.issue(t, "server")
	etcd := testutil.Etcd(t, "--cert-file", certificate, "--key-file", key,
		"--trusted-ca-file", ca.file, "--client-cert-auth")
	if etcd == nil {
		return
	}
	pair, err := tls.LoadX509KeyPair(ca.issue(t, "client"))
	ok(t, "LoadX509KeyPair", err)
	config := clientv3.Config{Endpoints: []string{"https://" + etcd.Addr()}}
	config.TLS = &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{pair}}
	worksOn(t, connect(t, config))

	config.TLS = &tls.Config{RootCAs: ca.pool}
	_, err = hasty(t, connect(t, config), core.WithOutageWait(0)).Acquire(t.Context(), "k")
	want(t, "Acquire without a certificate", err, core.ErrUnavailable)
	if !strings.Contains(err.Error(), "check its Endpoints and TLS") {
		t.Errorf("Acquire without a certificate: %v", err)
	}
}

// authority issues certificates.
type authority struct {
	dir, file string
	pool      *x509.CertPool
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir(), pool: x509.NewCertPool()}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.file, _ = a.issue(t, "authority")
	text, err := os.ReadFile(a.file)
	ok(t, "ReadFile", err)
	a.pool.AppendCertsFromPEM(text)
	return a
}

// issue makes a certificate and a key, and returns their files. The first one is the authority's
// own.
func (a *authority) issue(t *testing.T, name string) (certificate, key string) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, "GenerateKey", err)
	cert := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: a.cert.NotAfter,
		Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if a.key == nil {
		a.key, cert = own, a.cert
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &own.PublicKey, a.key)
	ok(t, "CreateCertificate", err)
	secret, err := x509.MarshalECPrivateKey(own)
	ok(t, "MarshalECPrivateKey", err)
	write := func(file, kind string, der []byte) string {
		path := filepath.Join(a.dir, file)
		ok(t, "WriteFile", os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	return write(name+".pem", "CERTIFICATE", der), write(name+".key", "EC PRIVATE KEY", secret)
}

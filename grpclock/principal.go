package grpclock

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// caller is who calls.
type caller struct {
	name        string   // "": anonymous
	credentials [32]byte // of one whom Principal does not name
}

// caller finds out who calls, once per call.
func (c *call) caller() *caller {
	if c.who != nil {
		return c.who
	}
	who := &caller{}
	if c.principal != nil {
		who.name = c.principal(c.ctx)
	} else if who.name = certified(c.ctx); who.name == "" {
		c.i.shared.Do(func() {
			c.log.InfoContext(c.ctx, "grpclock: no principal is known: all such callers share one space of keys, and a retry must come with the same credentials; grpclock.Principal changes that", "method", c.full)
		})
	}
	if who.name == "" || c.principal == nil { // a certificate may be that of a proxy, and many call through it
		who.credentials = idempotency.Credentials(c.incoming("authorization"), c.incoming("cookie"), c.incoming("x-api-key"))
	}
	c.who = who
	return who
}

func (c *call) incoming(name string) []string {
	return metadata.ValueFromIncomingContext(c.ctx, name)
}

// certified is the name in the client's certificate, if that was verified.
func certified(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return ""
	}
	return certificateName(info.State.VerifiedChains[0][0])
}

// certificateName is what stays when a certificate is renewed: its URIs (a SPIFFE ID is one), or its subject, or its
// DNS names and e-mail addresses. One without any name is its key.
func certificateName(leaf *x509.Certificate) string {
	parts := []string{"tls"}
	for _, u := range leaf.URIs {
		parts = append(parts, u.String())
	}
	if subject := leaf.Subject.String(); len(parts) == 1 && subject != "" {
		parts = append(parts, subject)
	}
	if len(parts) == 1 {
		parts = append(append(parts, leaf.DNSNames...), leaf.EmailAddresses...)
	}
	if len(parts) == 1 {
		key := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
		parts = append(parts, hex.EncodeToString(key[:]))
	}
	return core.Join(parts...)
}

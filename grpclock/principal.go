package grpclock

import (
	"context"
	"crypto/sha256"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"log/slog"
	"slices"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
)

// who returns the principal, or "" for an anonymous caller.
func (c *call) who() string {
	if c.principal != nil {
		return c.principal(c.ctx)
	}
	return certified(c.ctx)
}

// credentials returns a digest of the caller's credentials. It is zero for a caller whom Principal
// names. A certificate may be that of a proxy, and many callers come through it.
func (c *call) credentials(who string) [sha256.Size]byte {
	if who != "" && c.principal != nil {
		return [sha256.Size]byte{}
	}
	if who == "" {
		c.warned.Do(func() {
			c.log(
				slog.LevelWarn,
				"grpclock: no principal is known, so all callers share one space of keys, and a retry must come with the same credentials: pass Principal",
				nil,
			)
		})
	}
	return claim.Credentials(
		c.incoming("authorization"),
		append(c.incoming("cookie"), c.incoming("grpcgateway-cookie")...), // as grpc-gateway forwards it
		c.incoming("x-api-key"),
	)
}

func (c *call) incoming(name string) []string {
	return metadata.ValueFromIncomingContext(c.ctx, name)
}

// requestID returns the metadata x-request-id, or "".
func (c *call) requestID() string {
	ids := c.incoming("x-request-id")
	if len(ids) != 1 {
		return ""
	}
	id, err := validValue(ids[0])
	if err != nil {
		return ""
	}
	return id
}

// certified returns the name in the client's certificate, or "" if no certificate was verified. The
// name stays when the certificate is renewed, even if the authority lists names in another order.
// It begins with the issuer. Then follow the URIs (a SPIFFE ID is one), or else the subject. A
// subject without a common name may be that of all callers, such as O=bank. So the DNS names and
// e-mail addresses follow it. An IP address may be that of a pod, and counts only if there is no
// such name. If the certificate has nothing of all this, a digest of its key follows.
func certified(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return ""
	}
	leaf := info.State.VerifiedChains[0][0]
	var names []string
	for _, u := range leaf.URIs {
		names = append(names, u.String())
	}
	slices.Sort(names)
	if len(names) == 0 {
		if subject := nameOf(leaf.RawSubject); subject != "" {
			names = []string{subject}
		}
		if leaf.Subject.CommonName == "" {
			others := slices.Concat(leaf.DNSNames, leaf.EmailAddresses)
			if len(others) == 0 {
				for _, ip := range leaf.IPAddresses {
					others = append(others, ip.String())
				}
			}
			slices.Sort(others)
			names = append(names, others...)
		}
	}
	if len(names) == 0 {
		key := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
		names = []string{hex.EncodeToString(key[:])}
	}
	return core.Join(append([]string{"tls", nameOf(leaf.RawIssuer)}, names...)...)
}

// nameOf returns a distinguished name with all its parts. A pkix.Name has only the last of several
// common names.
func nameOf(raw []byte) string {
	var name pkix.RDNSequence
	if _, err := asn1.Unmarshal(raw, &name); err != nil {
		return hex.EncodeToString(raw)
	}
	return name.String()
}

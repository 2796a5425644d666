package grpclock

import (
	"bytes"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Canonical is what a request's fingerprint is the digest of.
func Canonical(m protoreflect.Message) []byte {
	var w walk
	w.message(m)
	var b bytes.Buffer
	w.write(&b)
	return b.Bytes()
}

// For the fuzz tests, and those with forged records.
var (
	FingerprintOf  = canonicalDigest
	ResolvePath    = resolvePath
	TemplateSource = templateSource
	QualifiedField = qualifiedField
)

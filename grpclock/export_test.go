package grpclock

// For the tests of what a request's fingerprint is made of, and the fuzz tests.
var (
	Canonical      = canonical
	ResolvePath    = resolvePath
	TemplateSource = templateSource
	QualifiedField = qualifiedField
	UUID4Key       = uuid4
)

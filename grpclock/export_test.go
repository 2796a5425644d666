package grpclock

// For the fuzz tests, those with forged records, and the test of the page on refusals.
var (
	Canonical      = canonical
	ResolvePath    = resolvePath
	TemplateSource = templateSource
	QualifiedField = qualifiedField
	GRPCCodes      = grpcCodes
)

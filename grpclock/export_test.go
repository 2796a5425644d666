package grpclock

// For the fuzz tests, and those with forged records.
var (
	Canonical      = canonical
	ResolvePath    = resolvePath
	TemplateSource = templateSource
	QualifiedField = qualifiedField
)

package idempotency

// For the fuzz tests.
var (
	JSONMember = jsonMember
	QueryKey   = queryKey
	ReadAll    = readAll
)

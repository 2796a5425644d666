package idempotency

// For the fuzz tests, and the test of the page on refusals.
var (
	JSONMember = jsonMember
	QueryKey   = queryKey
	ReadAll    = readAll
	Refusals   = refusals
)

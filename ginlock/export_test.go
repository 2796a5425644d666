package ginlock

// For the fuzz tests.
var (
	JSONMember = jsonMember
	QueryKey   = queryKey
	ReadAll    = readAll
)

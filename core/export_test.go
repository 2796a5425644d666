package core

// What the fuzz tests look at.
var (
	BackendKey = backendKey
	Companion  = companion
)

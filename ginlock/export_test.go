package ginlock

// HeaderKey is for the fuzz test.
var HeaderKey = headerKey

package core

// What the fuzz tests look at.
var (
	BackendKey = backendKey
	Companion  = companion
)

// Open returns b as a Locker with these options uses it.
func Open(b Backend, opts ...Option) (Backend, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return b.(interface {
		open(*config) (Backend, error)
	}).open(c)
}

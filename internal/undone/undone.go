// Package undone marks the errors after which it is certain that nothing was done. Packages tell
// them by the mark without importing each other.
package undone

import "slices"

// marked is an error with the mark.
type marked struct{ error }

func (m *marked) Unwrap() error { return m.error }

// Mark returns err with the mark, or nil.
func Mark(err error) error {
	if _, ok := err.(*marked); ok || err == nil {
		return err
	}
	return &marked{err}
}

// Certain reports whether nothing was done before err. Every error that err joins must be marked or
// known: the other half of errors.Join(rolledBack, refundFailed) is an effect. known looks at the
// error itself and not at those that it wraps.
func Certain(err error, known func(error) bool) bool {
	if _, ok := err.(*marked); ok || err != nil && known(err) {
		return true
	}
	switch wrapper := err.(type) {
	case interface{ Unwrap() error }:
		return Certain(wrapper.Unwrap(), known)
	case interface{ Unwrap() []error }:
		all := wrapper.Unwrap()
		return len(all) > 0 && !slices.ContainsFunc(all, func(err error) bool { return !Certain(err, known) })
	}
	return false
}

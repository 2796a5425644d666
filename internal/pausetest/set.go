package pausetest

import "errors"

var errStale = errors.New("a later holder has registered")

// All processes share set. A holder reads it, adds a member and writes it back as a whole. If the
// set is fenced, a holder registers its token when it reads, and only the last one may write.
type set struct {
	fenced  bool
	token   uint64
	members string
}

func (s *set) read(token uint64) (members string, err error) {
	if s.fenced && token <= s.token {
		return "", errStale
	}
	s.token = token
	return s.members, nil
}

func (s *set) write(token uint64, members string) error {
	if s.fenced && token != s.token {
		return errStale
	}
	s.members = members
	return nil
}

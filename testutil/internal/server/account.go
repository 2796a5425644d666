package server

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// account is the system user a server runs as when the caller is root: the databases refuse to run
// as root.
type account struct {
	name     string
	uid, gid int
}

// accountFor returns nil when the caller is not root, and then the server runs as the caller.
func accountFor(kind Kind, names ...string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil {
			return &account{name: name, uid: uid, gid: gid}, nil
		}
	}
	return nil, fmt.Errorf("server: %s does not run as root, and there is none of the users %q to run it as: create one, or run this as another user than root", kind, names)
}

func (a *account) own(dir string) error {
	if a == nil {
		return nil
	}
	if err := os.Chown(dir, a.uid, a.gid); err != nil {
		return fmt.Errorf("server: giving the data folder to %s: %w", a.name, err)
	}
	return nil
}

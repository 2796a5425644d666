package server

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
)

// Kind is a kind of server.
type Kind string

// The kinds of server.
const (
	Redis     Kind = "redis"
	MySQL     Kind = "mysql" // MariaDB, or MySQL
	Postgres  Kind = "postgres"
	Etcd      Kind = "etcd"
	ZooKeeper Kind = "zookeeper"
)

// Kinds are all kinds of server.
var Kinds = []Kind{Redis, MySQL, Postgres, Etcd, ZooKeeper}

// Package says what a kind of server needs: its binary and the packages that bring it.
type Package struct {
	Binary, Apt, Brew string // Apt and Brew may name several, separated by spaces

	env  string   // names the binary, where there is such a variable
	dirs []string // where it is besides PATH, as patterns
}

var packages = map[Kind]Package{
	Redis: {Binary: "redis-server", Apt: "redis-server", Brew: "redis", env: EnvRedisServer},
	MySQL: {Binary: "mariadbd", Apt: "mariadb-server", Brew: "mariadb", env: EnvMySQLServer,
		dirs: []string{"/usr/sbin", "/usr/libexec", "/opt/homebrew/opt/mariadb/bin", "/usr/local/opt/mariadb/bin"}},
	Postgres: {Binary: "postgres", Apt: "postgresql", Brew: "postgresql",
		dirs: []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin",
			"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin"}},
	Etcd:      {Binary: "etcd", Apt: "etcd-server", Brew: "etcd"},
	ZooKeeper: {Binary: zookeeperJar, Apt: "libzookeeper-java default-jre-headless", Brew: "zookeeper"},
}

// Package returns what the kind of server needs.
func (k Kind) Package() Package { return packages[k] }

// MissingError says that a server is not installed and what to install.
type MissingError struct{ Kind Kind }

// Error says what was not found and where the search went.
func (e *MissingError) Error() string {
	p := e.Kind.Package()
	how := fmt.Sprintf("install it (Debian, Ubuntu: apt-get install %s; macOS: brew install %s)", p.Apt, p.Brew)
	if p.env != "" {
		how += " or set " + p.env + " to its path"
	}
	return fmt.Sprintf("%s was not found: %s", p.Binary, how)
}

// Find returns the path of the server's binary, or a *MissingError.
func Find(kind Kind) (string, error) {
	if kind == ZooKeeper {
		return findZooKeeper()
	}
	p := kind.Package()
	if p.env != "" {
		if path := os.Getenv(p.env); path != "" {
			found, err := exec.LookPath(path)
			if err != nil {
				return "", fmt.Errorf("%s is set to %q, which does not run: %w", p.env, path, err)
			}
			return filepath.Abs(found) // servers and tests run in other folders
		}
	}
	return find(p.Binary, p.dirs, kind)
}

func find(binary string, dirs []string, kind Kind) (string, error) {
	if path, err := exec.LookPath(binary); err == nil && runtime.GOOS != "windows" {
		return filepath.Abs(path)
	}
	best, bestVersion := "", -1
	for _, dir := range dirs {
		paths, _ := filepath.Glob(filepath.Join(dir, binary))
		for _, path := range paths {
			if _, err := exec.LookPath(path); err == nil && version(path) > bestVersion {
				best, bestVersion = path, version(path)
			}
		}
	}
	if best == "" {
		return "", &MissingError{Kind: kind}
	}
	return best, nil
}

// beside is the folder the binary really is in, where its companions are: PATH may name a link to
// it.
func beside(binary string) string {
	if real, err := filepath.EvalSymlinks(binary); err == nil {
		binary = real
	}
	return filepath.Dir(binary)
}

var digits = regexp.MustCompile(`\d+`)

// version is the first number in the path: 15 in /usr/lib/postgresql/15/bin/postgres.
func version(path string) int {
	n, _ := strconv.Atoi(digits.FindString(path))
	return n
}

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// zookeeperJar is where packages put ZooKeeper: Debian's libzookeeper-java, Homebrew, and the official
// image.
const zookeeperJar = "zookeeper.jar"

var zookeeperJars = []string{
	"/usr/share/java/" + zookeeperJar,
	"/opt/homebrew/opt/zookeeper/libexec/lib/zookeeper-[0-9]*.jar",
	"/usr/local/opt/zookeeper/libexec/lib/zookeeper-[0-9]*.jar",
	"/apache-zookeeper-*-bin/lib/zookeeper-[0-9]*.jar",
}

// findZooKeeper returns the path of ZooKeeper's jar. It needs Java, too.
func findZooKeeper() (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", &MissingError{Kind: ZooKeeper}
	}
	for _, pattern := range zookeeperJars {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0], nil
		}
	}
	return "", &MissingError{Kind: ZooKeeper}
}

// classPath returns what a jar needs. Debian's names the others in its manifest, except for a
// logger, whose messages are read.
func classPath(jar string) string {
	dir := filepath.Dir(jar)
	if filepath.Base(jar) == zookeeperJar {
		return jar + ":" + filepath.Join(dir, "slf4j-simple.jar")
	}
	return filepath.Join(dir, "*")
}

// StartZooKeeper starts a ZooKeeper that syncs nothing to disk. The args, such as tickTime=100, are
// lines of its configuration and win over ours.
func StartZooKeeper(ctx context.Context, args ...string) (*Server, error) {
	return startZooKeeper(ctx, nil, nil, args)
}

// member is what makes a ZooKeeper one of an ensemble.
type member struct {
	id    string
	hosts string // its own file of host names, in the format of /etc/hosts
}

// startZooKeeper starts a member of an ensemble if m is not nil. Then the args name all members.
func startZooKeeper(ctx context.Context, env []string, m *member, args []string) (*Server, error) {
	jar, err := findZooKeeper()
	if err != nil {
		return nil, err
	}
	return start(ctx, spec{
		kind: ZooKeeper,
		env:  env,
		end:  syscall.SIGKILL,
		prepare: func(_ context.Context, dir string) error {
			data := filepath.Join(dir, "data")
			if err := os.Mkdir(data, 0o700); err != nil || m == nil {
				return err
			}
			return errors.Join(os.WriteFile(filepath.Join(data, "myid"), []byte(m.id), 0o600),
				os.WriteFile(filepath.Join(dir, hostsFile), []byte(m.hosts), 0o600))
		},
		command: func(dir string, port int) *exec.Cmd {
			config := filepath.Join(dir, "zoo.cfg")
			lines := slices.Concat([]string{
				"tickTime=200", "initLimit=15", "syncLimit=10", "maxSessionTimeout=60000", "maxClientCnxns=0",
				"admin.enableServer=false", "4lw.commands.whitelist=*",
			}, args, []string{
				"dataDir=" + filepath.Join(dir, "data"), "clientPortAddress=127.0.0.1", "clientPort=" + strconv.Itoa(port),
			})
			// If it cannot be written, Java says that it is not there.
			_ = os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
			java := []string{"-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
				"-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=256", "-Dzookeeper.maxResponseCacheSize=0", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"}
			if m != nil {
				java = append(java, "-Djdk.net.hosts.file="+filepath.Join(dir, hostsFile))
			}
			cmd := exec.Command("java", append(java,
				"-cp", classPath(jar), "org.apache.zookeeper.server.quorum.QuorumPeerMain", config)...)
			cmd.Env = append(os.Environ(), "LC_ALL=", "LC_MESSAGES=C") // its messages are read
			return cmd
		},
		ready: zookeeperReady,
	})
}

// hostsFile is the name of a member's file of host names.
const hostsFile = "hosts"

// A Route returns the loopback address at which member from of an ensemble reaches these ports of
// member to. A member listens on them at the address at which it reaches itself.
type Route func(from, to int, ports ...int) (ip string, err error)

// Direct is the Route of members that reach each other without anything in between.
func Direct(_, _ int, _ ...int) (ip string, err error) { return "127.0.0.1", nil }

// StartEnsemble starts n ZooKeeper servers that form an ensemble, and returns when each of them
// serves.
func StartEnsemble(ctx context.Context, n int, route Route, args ...string) ([]*Server, error) {
	var servers []*Server
	var err error
	for range portTries { // another process may take a port before the servers do
		if servers, err = startEnsemble(ctx, n, route, args); err == nil || ctx.Err() != nil {
			break
		}
		if _, missing := errors.AsType[*MissingError](err); missing {
			break
		}
	}
	return servers, err
}

func startEnsemble(ctx context.Context, n int, route Route, args []string) ([]*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout/4)
	defer cancel()
	members, lines, err := ensemble(n, route)
	if err != nil {
		return nil, err
	}
	args = slices.Concat(args, lines)
	servers, errs := make([]*Server, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { servers[i], errs[i] = startZooKeeper(ctx, nil, &members[i], args) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, s := range servers {
			if s != nil {
				s.Stop()
			}
		}
		return nil, err
	}
	return servers, nil
}

// ensemble returns the members and the lines of their configuration. The lines are the same for
// all, as ZooKeeper needs it: members tell each other where they are. Each one has its own address
// for a name in them.
func ensemble(n int, route Route) (members []member, lines []string, err error) {
	members = make([]member, n)
	for to := range n {
		peers, err1 := freePort()
		election, err2 := freePort()
		if err := errors.Join(err1, err2); err != nil {
			return nil, nil, err
		}
		id := strconv.Itoa(to + 1)
		lines = append(lines, fmt.Sprintf("server.%s=server%s:%d:%d", id, id, peers, election))
		members[to].id = id
		for from := range n {
			ip, err := route(from, to, peers, election)
			if err != nil {
				return nil, nil, err
			}
			members[from].hosts += fmt.Sprintf("%s server%s\n", ip, id)
		}
	}
	return members, lines, nil
}

// zookeeperReady asks for the data folder too: the port might belong to somebody else's ZooKeeper
// while ours fails to bind it.
func zookeeperReady(ctx context.Context, s *Server, _ int) error {
	config, err := AskZooKeeper(ctx, s.Addr, "conf")
	if err != nil {
		return err
	}
	if !strings.Contains(config, s.dir) {
		return errors.New("another process has the port")
	}
	status, err := AskZooKeeper(ctx, s.Addr, "srvr")
	if err == nil && !strings.Contains(status, "Mode: ") {
		err = errors.New(strings.TrimSpace(status))
	}
	return err
}

// AskZooKeeper sends a command of four letters to the server at addr and returns the answer.
func AskZooKeeper(ctx context.Context, addr, command string) (string, error) {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte(command)); err != nil {
		return "", err
	}
	var answer bytes.Buffer
	_, err = io.Copy(&answer, conn)
	return answer.String(), err
}

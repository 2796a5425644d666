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

// zookeeperJar is where packages put ZooKeeper: Debian's libzookeeper-java, and Homebrew.
const zookeeperJar = "zookeeper.jar"

var zookeeperJars = []string{
	"/usr/share/java/" + zookeeperJar,
	"/opt/homebrew/opt/zookeeper/libexec/lib/zookeeper-[0-9]*.jar",
	"/usr/local/opt/zookeeper/libexec/lib/zookeeper-[0-9]*.jar",
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

// classPath returns what a jar needs. Debian's names the others in its manifest, except for a logger,
// whose messages are read.
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
	return startZooKeeper(ctx, nil, "", args)
}

// startZooKeeper starts a member of an ensemble if id is not empty. Then the args name its members.
func startZooKeeper(ctx context.Context, env []string, id string, args []string) (*Server, error) {
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
			if err := os.Mkdir(data, 0o700); err != nil || id == "" {
				return err
			}
			return os.WriteFile(filepath.Join(data, "myid"), []byte(id), 0o600)
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
			return exec.Command("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
				"-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=256", "-Dzookeeper.maxResponseCacheSize=0", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
				"-cp", classPath(jar), "org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
		},
		ready: zookeeperReady,
	})
}

// StartEnsemble starts n ZooKeeper servers that form an ensemble, and returns when each of them serves.
func StartEnsemble(ctx context.Context, n int, args ...string) ([]*Server, error) {
	var servers []*Server
	var err error
	for range portTries { // another process may take a port before the servers do
		if servers, err = startEnsemble(ctx, n, args); err == nil || ctx.Err() != nil {
			break
		}
		if _, missing := errors.AsType[*MissingError](err); missing {
			break
		}
	}
	return servers, err
}

func startEnsemble(ctx context.Context, n int, args []string) ([]*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout/4)
	defer cancel()
	args = slices.Clone(args)
	for i := range n {
		peers, err1 := freePort()
		election, err2 := freePort()
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		args = append(args, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, peers, election))
	}
	servers, errs := make([]*Server, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { servers[i], errs[i] = startZooKeeper(ctx, nil, strconv.Itoa(i+1), args) })
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

package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// StartEtcd starts an etcd of one member. The args are added to its command line.
func StartEtcd(ctx context.Context, args ...string) (*Server, error) {
	return startEtcd(ctx, nil, args)
}

func startEtcd(ctx context.Context, env, args []string) (*Server, error) {
	// Nobody dials the address of the only peer.
	const nobody = "http://127.0.0.1:1"
	return startMember(ctx, env, func(dir string) (string, []string) {
		name := filepath.Base(dir)
		return name, append([]string{"--listen-peer-urls", "http://127.0.0.1:0",
			"--initial-advertise-peer-urls", nobody, "--initial-cluster", name + "=" + nobody}, args...)
	})
}

// StartEtcdCluster starts an etcd of n members. advertise returns the URL under which the others
// reach member i, whose peer address is listen. The args are added to each command line.
func StartEtcdCluster(
	ctx context.Context, n int, advertise func(i int, listen string) string, args ...string,
) ([]*Server, error) {
	var err error
	for range portTries {
		var members []*Server
		if members, err = startEtcdCluster(ctx, n, advertise, args); err == nil {
			return members, nil
		}
		if !errors.Is(err, errPortTaken) {
			return nil, err
		}
	}
	return nil, err
}

func startEtcdCluster(
	ctx context.Context, n int, advertise func(int, string) string, args []string,
) ([]*Server, error) {
	listen, names, cluster := make([]string, n), make([]string, n), make([]string, n)
	urls := make([]string, n)
	for i := range n {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		listen[i] = "127.0.0.1:" + strconv.Itoa(port)
		names[i] = fmt.Sprintf("member%d-%d", i, port)
		urls[i] = advertise(i, listen[i])
		cluster[i] = names[i] + "=" + urls[i]
	}
	members, errs := make([]*Server, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { // a member answers when a majority runs
			members[i], errs[i] = startMember(ctx, nil, func(string) (string, []string) {
				return names[i], append([]string{"--listen-peer-urls", "http://" + listen[i],
					"--initial-advertise-peer-urls", urls[i],
					"--initial-cluster", strings.Join(cluster, ",")}, args...)
			})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		for i, m := range members {
			if errs[i] == nil {
				m.Stop()
			}
		}
		return nil, err
	}
	return members, nil
}

// startMember starts one member. peers returns its name and the arguments about its peers.
func startMember(
	ctx context.Context, env []string, peers func(dir string) (name string, args []string),
) (*Server, error) {
	binary, err := Find(Etcd)
	if err != nil {
		return nil, err
	}
	return start(ctx, spec{
		kind: Etcd,
		env:  env,
		end:  syscall.SIGKILL,
		command: func(dir string, port int) *exec.Cmd {
			name, args := peers(dir)
			url := etcdURL(args, "127.0.0.1:"+strconv.Itoa(port))
			return exec.Command(binary, append([]string{"--name", name, "--data-dir", filepath.Join(dir, "data"),
				"--listen-client-urls", url, "--advertise-client-urls", url,
				"--logger", "zap", "--log-outputs", "stderr", "--log-level", "warn"}, args...)...)
		},
		ready: func(ctx context.Context, s *Server, _ int) error {
			name, args := peers(s.dir)
			return etcdReady(ctx, s, name, args)
		},
	})
}

// etcdReady also asks for the member's name: another etcd may have the port while ours fails to
// bind.
func etcdReady(ctx context.Context, s *Server, name string, args []string) error {
	client, err := etcdClient(args)
	if err != nil {
		return err
	}
	url := etcdURL(args, s.Addr)
	var health struct{ Health string }
	if err := askEtcd(ctx, client, http.MethodGet, url+"/health", &health); err != nil {
		return err
	}
	if health.Health != "true" {
		return errors.New("it has no leader")
	}
	var list struct{ Members []struct{ Name string } }
	if err := askEtcd(ctx, client, http.MethodPost, url+"/v3/cluster/member/list", &list); err != nil {
		return err
	}
	for _, m := range list.Members {
		if m.Name == name {
			return nil
		}
	}
	return errors.New("another process has the port")
}

// The arguments of a member that speaks TLS to its clients.
const (
	etcdCertificate = "--cert-file"
	etcdKey         = "--key-file"
)

func etcdURL(args []string, addr string) string {
	if slices.Contains(args, etcdCertificate) {
		return "https://" + addr
	}
	return "http://" + addr
}

// etcdClient returns what asks a member. To one with a certificate it shows that same certificate,
// as the member's own gateway does.
func etcdClient(args []string) (*http.Client, error) {
	certificate, key := slices.Index(args, etcdCertificate), slices.Index(args, etcdKey)
	if certificate < 0 || key < 0 {
		return http.DefaultClient, nil
	}
	pair, err := tls.LoadX509KeyPair(args[certificate+1], args[key+1])
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config}}, nil
}

func askEtcd(ctx context.Context, client *http.Client, method, url string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	request.Close = true // no goroutine stays for the connection
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(answer)
}

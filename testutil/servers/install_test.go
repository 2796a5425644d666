//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onelane/onelane/testutil/internal/server"
)

// A machine without Redis: neither in PATH nor named by a variable.
func withoutRedis(t *testing.T, path string) (env []string) {
	t.Helper()
	t.Setenv(server.EnvRedisServer, "")
	t.Setenv("PATH", path)
	if found, err := server.Find(server.Redis); err == nil {
		t.Fatalf("%s was found with PATH=%q", found, path)
	}
	return append(os.Environ(), asCommand+"=1")
}

func TestMissingServerIsSaid(t *testing.T) {
	env := withoutRedis(t, "")
	for _, c := range []struct {
		name  string
		flags []string
		says  string
	}{
		{"not allowed", []string{"-no-install"}, "Leave out -no-install"},
		{"no package manager", nil, "neither is at hand"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ran := filepath.Join(t.TempDir(), "ran")
			cmd := servers(t, append(c.flags, "-only", "redis", "/bin/sh", "-c", "echo > "+ran)...)
			cmd.Env = env
			got := output(t, cmd)
			if got.status != 2 {
				t.Errorf("status %d, want 2", got.status)
			}
			for _, says := range []string{"redis-server was not found", "apt-get install redis-server", "brew install redis", c.says} {
				if !strings.Contains(got.stderr, says) {
					t.Errorf("it does not say %q but:\n%s", says, got.stderr)
				}
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("the command was run")
			}
		})
	}
}

// fake writes an executable script.
func fake(t *testing.T, path, body string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestMissingServerIsInstalled(t *testing.T) {
	bin := t.TempDir()
	withoutRedis(t, bin)
	log := filepath.Join(bin, "log")
	body := `echo "$0 $* $DEBIAN_FRONTEND" >>` + log + `
case "$*" in *install*) echo '#!/bin/sh' >` + bin + `/redis-server; /bin/chmod +x ` + bin + `/redis-server;; esac
`
	fake(t, filepath.Join(bin, "apt-get"), body)
	fake(t, filepath.Join(bin, "brew"), body)
	var said strings.Builder
	if err := install(t.Context(), []server.Kind{server.Redis}, true, true, &said); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "installing redis") {
		t.Errorf("it does not say what it installs: %q", said.String())
	}
	did, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	want := bin + "/brew install redis \n"
	if os.Geteuid() == 0 {
		apt := bin + "/apt-get -o DPkg::Lock::Timeout=300 "
		want = apt + "update noninteractive\n" + apt + "install -y --no-install-recommends redis-server noninteractive\n"
	}
	if string(did) != want {
		t.Errorf("it ran\n%swant\n%s", did, want)
	}
}

func TestInstallationFails(t *testing.T) {
	bin := t.TempDir()
	withoutRedis(t, bin)
	for _, c := range []struct{ name, body, says string }{
		{"with an error", "echo no network; exit 100\n", "no network"},
		{"silently", "exit 0\n", "redis-server was not found"},
	} {
		fake(t, filepath.Join(bin, "apt-get"), c.body)
		fake(t, filepath.Join(bin, "brew"), c.body)
		err := install(t.Context(), []server.Kind{server.Redis}, true, false, &strings.Builder{})
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "apt-get install redis-server") {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && strings.Contains(err.Error(), "neither is at hand") {
			t.Errorf("%s: the package manager was run, and it says:\n%v", c.name, err)
		}
	}
}

// Flags of go env -w count as those of the environment do.
func TestGoFlags_OfGoEnv(t *testing.T) {
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(settings, []byte("GOFLAGS=-p=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOENV", settings)
	t.Setenv("GOFLAGS", "")
	if got := goFlags(goCommand); got != "-p=1" {
		t.Errorf("got %q, want -p=1", got)
	}
	t.Setenv("GOFLAGS", "-v")
	if got := goFlags(goCommand); got != "-v" {
		t.Errorf("got %q, want -v", got)
	}
}

// Packages of Debian start their services; ours must not, and a policy of the machine's own stays.
func TestServicesStayOff(t *testing.T) {
	dir := t.TempDir()
	policy, seen := filepath.Join(dir, "policy-rc.d"), filepath.Join(dir, "seen")
	fake(t, filepath.Join(dir, "apt-get"), "cat "+policy+" >"+seen+"\n")
	m := aptGet(filepath.Join(dir, "apt-get"), policy)
	for _, own := range []string{"", "#!/bin/sh\nexit 0\n"} {
		want := "#!/bin/sh\nexit 101\n"
		if own != "" {
			want = own
			fake(t, policy, strings.TrimPrefix(own, "#!/bin/sh\n"))
		}
		if err := m.install(t.Context(), []server.Kind{server.Redis}, false, &strings.Builder{}); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(seen); err != nil || string(got) != want {
			t.Errorf("while installing the policy is %q, %v; want %q", got, err, want)
		}
		if got, err := os.ReadFile(policy); (err == nil) != (own != "") || string(got) != own {
			t.Errorf("afterwards the policy is %q, %v; want %q", got, err, own)
		}
	}
}

func TestExpand(t *testing.T) {
	t.Setenv("ONELANE_OTHER", "other")
	env := map[string]string{"ONELANE_REDIS": "127.0.0.1:1", "ONELANE_MYSQL_DSN": "root@tcp(h)/db?a=$b"}
	got := expand([]string{"$ONELANE_REDIS", "x:${ONELANE_REDIS}y", "mysql:$ONELANE_MYSQL_DSN", "$HOME ${HOME} $$ $", "$ONELANE_OTHER",
		"$ONELANE_NONE.", "$ONELANE_REDIS_NOT"}, env)
	want := []string{"127.0.0.1:1", "x:127.0.0.1:1y", "mysql:root@tcp(h)/db?a=$b", "$HOME ${HOME} $$ $", "other", ".", ""}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

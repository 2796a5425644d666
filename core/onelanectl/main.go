// Command onelanectl is for the person on call: it shows who holds what, and frees it. It knows one
// Redis, Redis Cluster, Sentinel, a quorum of independent masters, etcd, ZooKeeper, and the table of
// sqlbackend in PostgreSQL, MySQL, MariaDB and SQLite.
//
//	go build github.com/onelane/onelane/core/onelanectl
//	./onelanectl -redis 127.0.0.1:6379 ls order:
//	./onelanectl inspect order:42
//	./onelanectl release order:42 -owner 'shop-1:4711/6f3c…'
//
// It exits with 1 if it had nothing to do or to show: the key is free, or not held by that owner.
// It exits with 2 when it does not know. With "go run" both are 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/redis/go-redis/v9"
)

const usage = `onelanectl shows and frees the locks of onelane.

  onelanectl [flags] inspect KEY                 what a key is: free, held by whom, sealed, or orphaned
  onelanectl [flags] ls [PREFIX]                 the keys that are held, sealed or orphaned now
  onelanectl [flags] unseal KEY                  frees a sealed or orphaned key: a request may run again, a sale goes on
                                                 A key is orphaned if its holder disappeared: check first how far it came.
                                                 The record of a request or a step is only deleted with -yes.
  onelanectl [flags] forget PREFIX -yes          frees all sealed and orphaned keys that begin with PREFIX, such as the
                                                 answers to one caller; without -yes it only shows them
  onelanectl [flags] find PRINCIPAL KEY          what is kept for a caller's key, as the client sends it; '' is an anonymous caller
  onelanectl [flags] answer KEY [-status 201 -type application/json] [-body BODY]
                                                 records an answer for a request or a step whose outcome is unknown;
                                                 without a status and a body, retries learn that it was not kept
  onelanectl [flags] erase PRINCIPAL -yes        forgets everything of a caller; without -yes it only shows it
  onelanectl [flags] release KEY -owner OWNER    frees a held key; OWNER as inspect shows it
                                                 Its holder may still be at work until its next renewal.
Flags:
`

// quiet drops what go-redis logs beside the errors it returns.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(quiet{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the command line.
type options struct {
	servers
	prefix, owner string
	limit         int
	timeout       time.Duration
	held, yes     bool
	json, value   bool
	args          []string // the command and its arguments

	service, source string // of find, erase and answer
	status          int
	mediaType       string
	body            []byte // nil if there is none
}

// run is main with everything it touches passed in; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		err = o.do(ctx, stdout)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "onelanectl: %v\n", err)
	if errors.Is(err, core.ErrLost) || errors.Is(err, errNothing) || errors.Is(err, errFree) || errors.Is(err, idempotency.ErrKnown) {
		return 1
	}
	return 2
}

// parse reads flags before, between and after the arguments.
func parse(args []string, stdout io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("onelanectl", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.redis, "redis", "127.0.0.1:6379", "`host:port or URL` (redis://, rediss://) of Redis. 3, 5 or 7, separated by commas, are a quorum. Set the password in "+passwordEnv)
	f.BoolVar(&o.cluster, "cluster", false, "-redis names nodes of one Redis Cluster")
	f.StringVar(&o.sentinel, "sentinel", "", "-redis names the Sentinels of this `master`. The user and the password are the master's. Set the Sentinels' password in "+sentinelPasswordEnv)
	f.StringVar(&o.etcd, "etcd", "", "`host:port or URL` of the members of etcd, separated by commas. Set the user and the password in "+etcdUserEnv+" and "+etcdPasswordEnv)
	f.StringVar(&o.zookeeper, "zookeeper", "", "`host:port` of the ZooKeeper servers, separated by commas. Set scheme:credentials, such as digest:user:password, in "+zookeeperAuthEnv)
	f.StringVar(&o.sql, "sql", "", "`URL` of the database with the table onelane_locks: postgres://USER@HOST/DATABASE, mysql://USER@HOST:3306/DATABASE, or sqlite:FILE. Set the password in "+sqlPasswordEnv)
	f.StringVar(&o.root, "root", "/onelane", "of ZooKeeper: the `path` that the services passed to zkbackend.WithRoot")
	f.StringVar(&o.prefix, "prefix", "onelane:", "what the services passed to core.WithPrefix")
	f.StringVar(&o.owner, "owner", "", "of release: the `owner`, as inspect shows it")
	f.BoolVar(&o.held, "held", false, "of ls: only keys that are held or orphaned, without the records and seals, of which there may be many")
	f.StringVar(&o.service, "service", "", "of find and erase: what the service passed to idempotency.Service")
	f.StringVar(&o.source, "source", "", "of find: the header, or \"metadata NAME\" or \"field PATH\" over gRPC (default Idempotency-Key)")
	f.IntVar(&o.status, "status", 0, "of answer: the HTTP status")
	f.StringVar(&o.mediaType, "type", "", "of answer: the Content-Type over HTTP")
	f.Func("body", "of answer: the body, or the result of a step or of Do as JSON", func(s string) error {
		o.body = []byte(s)
		return nil
	})
	f.BoolVar(&o.yes, "yes", false, "of forget and erase: do it; of unseal: even if a request or a step has a record")
	f.IntVar(&o.limit, "limit", 1000, "of ls and forget: how many keys at most")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "for all of it")
	f.BoolVar(&o.json, "json", false, "print JSON, one object a line")
	f.BoolVar(&o.value, "value", false, "print the sealed value; a recorded answer may be secret")
	for rest := args; ; {
		if err := f.Parse(rest); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				fmt.Fprint(stdout, usage)
				f.SetOutput(stdout)
				f.PrintDefaults()
			}
			return o, err
		}
		if f.NArg() == 0 {
			break
		}
		o.args = append(o.args, f.Arg(0))
		rest = f.Args()[1:]
	}
	return o, o.valid()
}

func (o *options) valid() error {
	if len(o.args) == 0 {
		return errors.New("say what to do: inspect KEY, ls [PREFIX], unseal KEY, forget PREFIX, find PRINCIPAL KEY, answer KEY, erase PRINCIPAL, release KEY -owner OWNER; -h tells more")
	}
	command, least, most := o.args[0], 2, 2
	switch command {
	case "inspect", "unseal", "forget", "release", "answer", "erase":
	case "find":
		least, most = 3, 3
	case "ls":
		least = 1
	default:
		return fmt.Errorf("there is no command %q: use inspect, ls, unseal, forget, find, answer, erase or release", command)
	}
	switch n := len(o.args); {
	case n < least:
		return fmt.Errorf("%s: which key?", command)
	case n > most:
		return fmt.Errorf("%s: unexpected argument %q: one key at a time", command, o.args[most])
	case command == "release" && o.owner == "":
		return errors.New("release: say whose lock it is with -owner; inspect shows it")
	case command != "release" && o.owner != "":
		return fmt.Errorf("%s: -owner is for release", command)
	case command != "ls" && o.held:
		return fmt.Errorf("%s: -held is for ls", command)
	case command != "forget" && command != "unseal" && command != "erase" && o.yes:
		return fmt.Errorf("%s: -yes is for forget, erase and unseal", command)
	case command != "find" && command != "erase" && o.service != "":
		return fmt.Errorf("%s: -service is for find and erase", command)
	case command != "find" && o.source != "":
		return fmt.Errorf("%s: -source is for find", command)
	case command != "answer" && (o.status != 0 || o.mediaType != "" || o.body != nil):
		return fmt.Errorf("%s: -status, -type and -body are for answer", command)
	case command == "forget" && o.args[1] == "":
		return errors.New("forget: an empty prefix would forget everything")
	case command == "erase" && o.args[1] == "":
		return errors.New("erase: name a caller: without a name these are the keys of all anonymous callers")
	case o.limit < 1:
		return fmt.Errorf("-limit %d: it must be positive", o.limit)
	case o.timeout <= 0:
		return fmt.Errorf("-timeout %v: it must be positive", o.timeout)
	}
	return nil
}

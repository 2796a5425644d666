//go:build unix

package gormlock_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
)

// Some tests need a process that can be stopped or killed. It is this test binary, started again with these variables.
const (
	childRole     = "ONELANE_TEST_CHILD" // one of childRoles
	childRedis    = "ONELANE_TEST_CHILD_REDIS"
	childDatabase = "ONELANE_TEST_CHILD_DATABASE" // as GORM calls it, a colon, and what place says
	childPrepared = "ONELANE_TEST_CHILD_PREPARED"
	childArgument = "ONELANE_TEST_CHILD_ARGUMENT"
)

var childRoles = map[string]func(c *childProcess) error{"holder": pausedHolder, "payer": dyingPayer}

// init does not return in a child.
func init() {
	role := os.Getenv(childRole)
	if role == "" {
		return
	}
	c := &childProcess{argument: os.Getenv(childArgument), in: bufio.NewReader(os.Stdin)}
	err := c.open()
	if err == nil {
		err = childRoles[role](c)
	}
	c.say("%v", err)
	os.Exit(0)
}

// childProcess is what a child has.
type childProcess struct {
	argument string
	redis    *redis.Client
	conns    *sql.DB
	open_    func(pool gorm.ConnPool) (*gorm.DB, error)
	in       *bufio.Reader
}

// say tells the parent something, in one line.
func (c *childProcess) say(format string, args ...any) {
	fmt.Println(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

// wait returns when the parent says so.
func (c *childProcess) wait() error {
	_, err := c.in.ReadString('\n')
	return err
}

// patientRedis is a backend that a busy machine does not make unavailable.
func patientRedis(client *redis.Client) core.Opener {
	b := redisbackend.New(client)
	b.NodeTimeout = 10 * time.Second
	return b
}

func (c *childProcess) locker(ttl time.Duration, opts ...core.Option) (*core.Locker, error) {
	return core.New(patientRedis(c.redis), append([]core.Option{core.WithTTL(ttl)}, opts...)...)
}

func (c *childProcess) open() error {
	c.redis = redis.NewClient(&redis.Options{Addr: os.Getenv(childRedis)})
	kind, place, _ := strings.Cut(os.Getenv(childDatabase), ":")
	config := &gorm.Config{Logger: logger.Discard, PrepareStmt: os.Getenv(childPrepared) == "true"}
	var dialector func(gorm.ConnPool) gorm.Dialector
	switch kind {
	case "sqlite":
		var err error
		if c.conns, err = sql.Open(sqlite.DriverName, "file:"+place+"?_pragma=busy_timeout(5000)&_txlock=immediate"); err != nil {
			return err
		}
		dialector = func(p gorm.ConnPool) gorm.Dialector { return &sqlite.Dialector{Conn: p} }
	case "mysql":
		cfg, err := gomysql.ParseDSN(os.Getenv("ONELANE_MYSQL_DSN"))
		if err != nil {
			return err
		}
		cfg.DBName = place
		connector, err := gomysql.NewConnector(cfg)
		if err != nil {
			return err
		}
		c.conns = sql.OpenDB(connector)
		dialector = func(p gorm.ConnPool) gorm.Dialector { return mysql.New(mysql.Config{Conn: p}) }
	case "postgres":
		cfg, err := pgx.ParseConfig(os.Getenv("ONELANE_POSTGRES_DSN"))
		if err != nil {
			return err
		}
		cfg.Database = place
		c.conns = stdlib.OpenDB(*cfg)
		dialector = func(p gorm.ConnPool) gorm.Dialector { return postgres.New(postgres.Config{Conn: p}) }
	}
	c.open_ = func(p gorm.ConnPool) (*gorm.DB, error) { return gorm.Open(dialector(p), config) }
	return c.conns.Ping()
}

// place says where a child finds the database of db.
func place(t testing.TB, db *gorm.DB) string {
	t.Helper()
	if db.Name() != "sqlite" {
		return db.Name() + ":" + db.Migrator().CurrentDatabase()
	}
	var file string
	ok(t, "PRAGMA", db.Raw("SELECT file FROM pragma_database_list WHERE name = 'main'").Row().Scan(&file))
	return "sqlite:" + file
}

// child is a child process as its parent sees it.
type child struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func startChild(t testing.TB, role, redisAddr string, db *gorm.DB, argument string) *child {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	_, prepared := db.ConnPool.(*gorm.PreparedStmtDB)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role, childRedis+"="+redisAddr, childDatabase+"="+place(t, db),
		childPrepared+"="+fmt.Sprint(prepared), childArgument+"="+argument)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	ok(t, "StdinPipe", err)
	out, err := cmd.StdoutPipe()
	ok(t, "StdoutPipe", err)
	ok(t, "Start", cmd.Start())
	t.Cleanup(func() {
		cancel() // kills it
		_ = cmd.Wait()
	})
	return &child{t, cmd, in, bufio.NewScanner(out)}
}

// hears reads the child's next line; "" after its end.
func (c *child) hears() string {
	c.out.Scan()
	return c.out.Text()
}

// want fails unless the child's next line is what.
func (c *child) want(what string) {
	c.t.Helper()
	if line := c.hears(); line != what {
		c.t.Fatalf("the child said %q, want %q", line, what)
	}
}

// tell lets the child go on.
func (c *child) tell() {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in)
	ok(c.t, "Write", err)
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	ok(c.t, s.String(), c.cmd.Process.Signal(s))
}

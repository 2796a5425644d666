package gormlock_test

import (
	"bytes"
	"database/sql"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// What a proxy does with a COMMIT.
const (
	pass      = iota
	cutBefore // close the connection instead of passing it on
	cutAfter  // pass it on, and close the connection when the answer comes
	swallow   // pass it on, and keep the answer
)

// proxy stands between a driver and its server.
type proxy struct {
	listener net.Listener
	upstream string
	do       atomic.Int32
	chance   atomic.Int32 // of a thousand chunks to a server, so many are cut before or after, whatever they are
	all      sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func startProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, "Listen", err)
	p := &proxy{listener: l, upstream: upstream}
	p.all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", upstream)
			if err != nil {
				_ = client.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.mu.Unlock()
			p.relay(client, server)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.all.Wait()
	})
	return p
}

func (p *proxy) relay(client, server net.Conn) {
	var committing atomic.Int32
	closeBoth := func() { _, _ = client.Close(), server.Close() }
	p.all.Go(func() {
		defer closeBoth()
		copyChunks(client, server, func(chunk []byte) bool {
			if bytes.Contains(bytes.ToUpper(chunk), []byte("COMMIT")) {
				committing.Store(p.do.Load())
			}
			if rand.Int32N(1000) < p.chance.Load() {
				committing.Store(cutBefore + rand.Int32N(2))
			}
			return committing.Load() != cutBefore
		})
	})
	p.all.Go(func() {
		defer closeBoth()
		copyChunks(server, client, func([]byte) bool {
			if committing.Load() == swallow {
				var one [1]byte
				_, _ = client.Read(one[:]) // until the driver closes the connection
			}
			return committing.Load() == pass
		})
	})
}

// copyChunks copies while look agrees.
func copyChunks(from, to net.Conn, look func(chunk []byte) bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || !look(buf[:n]) {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// behindProxy opens the database of db again, through a proxy; nil on SQLite, which has no server.
func behindProxy(t *testing.T, db *gorm.DB) (*gorm.DB, *proxy) {
	t.Helper()
	name := db.Migrator().CurrentDatabase()
	var dialector gorm.Dialector
	var p *proxy
	var conns *sql.DB
	switch db.Name() {
	case "mysql":
		cfg, err := gomysql.ParseDSN(os.Getenv("ONELANE_MYSQL_DSN"))
		ok(t, "ParseDSN", err)
		p = startProxy(t, cfg.Addr)
		cfg.Addr, cfg.DBName, cfg.Logger = p.listener.Addr().String(), name, &gomysql.NopLogger{}
		connector, err := gomysql.NewConnector(cfg)
		ok(t, "NewConnector", err)
		conns = sql.OpenDB(connector)
		dialector = mysql.New(mysql.Config{Conn: conns})
	case "postgres":
		cfg, err := pgx.ParseConfig(os.Getenv("ONELANE_POSTGRES_DSN"))
		ok(t, "ParseConfig", err)
		p = startProxy(t, net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))))
		addr := p.listener.Addr().(*net.TCPAddr)
		cfg.Host, cfg.Port, cfg.Database, cfg.Fallbacks = addr.IP.String(), uint16(addr.Port), name, nil
		conns = stdlib.OpenDB(*cfg)
		dialector = postgres.New(postgres.Config{Conn: conns})
	default:
		return nil, nil
	}
	t.Cleanup(func() { _ = conns.Close() })
	_, prepared := db.ConnPool.(*gorm.PreparedStmtDB)
	proxied, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard, PrepareStmt: prepared})
	ok(t, "Open", err)
	return proxied, p
}

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

// A proxy treats a COMMIT in one of these ways.
const (
	pass      = iota
	cutBefore // Close the connection instead of forwarding it.
	cutAfter  // Forward it, and close the connection when the answer comes.
	swallow   // Forward it, and keep the answer.
	replace   // Forward it, and send an error of the proxy's own instead of the answer.
	refuse    // Send an error of the proxy's own instead, and close the connections.
	interrupt // Send that error instead, even for a ROLLBACK, and keep the connections open, as KILL QUERY does.
	lose      // From now on answer nothing, and refuse new connections.
)

// proxy stands between a driver and its server.
type proxy struct {
	listener net.Listener
	upstream string
	do       atomic.Int32
	chance   atomic.Int32 // Cuts before or after so many of 1000 chunks to a server, of any kind.
	failure  atomic.Value // A []byte, the error of replace, refuse and interrupt as the driver reads it.
	accepts  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	pairs []*sync.WaitGroup // of the two readers of each pair of conns
	edit  [2]string         // a text in what clients send, and what to forward instead, of the same length
}

func startProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, "Listen", err)
	p := &proxy{listener: l, upstream: upstream}
	p.accepts.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			if p.do.Load() == lose {
				_ = client.Close()
				continue
			}
			server, err := net.Dial("tcp", upstream)
			if err != nil {
				_ = client.Close()
				continue
			}
			pair := new(sync.WaitGroup)
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.relay(client, server, pair)
			p.pairs = append(p.pairs, pair)
			p.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.accepts.Wait()
		p.cutAll()
	})
	return p
}

// cutAll ends all connections with RST. A socket that is read is closed by its reader, so cutAll waits
// for the readers: a driver must not write before the RST.
func (p *proxy) cutAll() {
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	pairs := p.pairs
	p.mu.Unlock() // the readers take it
	for _, pair := range pairs {
		pair.Wait()
	}
}

func (p *proxy) relay(client, server net.Conn, pair *sync.WaitGroup) {
	var committing atomic.Int32
	closeBoth := func() { _, _ = client.Close(), server.Close() }
	pair.Go(func() {
		defer closeBoth()
		copyChunks(client, server, func(chunk []byte) ([]byte, bool) {
			if p.do.Load() == lose {
				return nil, true
			}
			text := bytes.ToUpper(chunk)
			commits := bytes.Contains(text, []byte("COMMIT"))
			if p.do.Load() == interrupt && (commits || bytes.Contains(text, []byte("ROLLBACK"))) {
				_, _ = client.Write(p.failure.Load().([]byte))
				return nil, true
			}
			if commits {
				committing.Store(p.do.Load())
			}
			if rand.Int32N(1000) < p.chance.Load() {
				committing.Store(cutBefore + rand.Int32N(2))
			}
			if committing.Load() == refuse {
				_, _ = client.Write(p.failure.Load().([]byte))
			}
			return p.edited(chunk), committing.Load() != cutBefore && committing.Load() != refuse
		})
	})
	pair.Go(func() {
		defer closeBoth()
		copyChunks(server, client, func(chunk []byte) ([]byte, bool) {
			if p.do.Load() == lose {
				return nil, true
			}
			switch committing.Load() {
			case swallow:
				var one [1]byte
				_, _ = client.Read(one[:]) // until the driver closes the connection
			case replace:
				committing.Store(pass)
				return p.failure.Load().([]byte), true
			}
			return chunk, committing.Load() == pass
		})
	})
}

func (p *proxy) edited(chunk []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.edit[0] == "" {
		return chunk
	}
	return bytes.ReplaceAll(chunk, []byte(p.edit[0]), []byte(p.edit[1]))
}

// mysqlFailure is an error packet of a proxy, the answer to one statement.
func mysqlFailure(number uint16) []byte {
	body := append([]byte{0xff, byte(number), byte(number >> 8)}, "#HY000target: shop.0.primary: tablet is unavailable"...)
	return append([]byte{byte(len(body)), 0, 0, 1}, body...)
}

// postgresFailure is an error of a proxy, after which it is ready for the next statement.
func postgresFailure(state string) []byte {
	fields := "SERROR\x00VERROR\x00C" + state + "\x00Mserver connection is gone\x00\x00"
	return append([]byte{'E', 0, 0, 0, byte(len(fields) + 4)}, fields+"Z\x00\x00\x00\x05I"...)
}

// copyChunks copies what look returns, until look or a connection ends it.
func copyChunks(from, to net.Conn, look func(chunk []byte) ([]byte, bool)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		chunk, more := look(buf[:n])
		if !more {
			return
		}
		if _, err := to.Write(chunk); err != nil {
			return
		}
	}
}

// behindProxy opens the database of db again, through a proxy. It returns nil on SQLite, which has no
// server.
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

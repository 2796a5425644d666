package sqlbackend_test

import (
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/sqlrelay"
)

// TestSealTooLarge: MySQL refuses a statement that is longer than max_allowed_packet (4 MiB
// by default on MySQL 5.7). That is no outage: to try again cannot help, and a smaller seal works.
func TestSealTooLarge(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		if db.name != "mysql" {
			return
		}
		db.migrate(t)
		for _, refusal := range []*gomysql.MySQLError{
			{Number: 1153, SQLState: [5]byte{'0', '8', 'S', '0', '1'}, Message: "Got a packet bigger than 'max_allowed_packet' bytes"},
			{Number: 1105, SQLState: [5]byte{'H', 'Y', '0', '0', '0'}, Message: "Parameter of prepared statement which is set through mysql_send_long_data() is longer than 'max_allowed_packet' bytes"},
		} {
			network := &sqlrelay.Relay{Primary: db.DB}
			network.Exec = func(_ string, args []any, run func() (driver.Result, error)) (driver.Result, error) {
				for _, a := range args {
					if b, is := a.([]byte); is && len(b) > 4<<20 {
						return nil, refusal
					}
				}
				return run()
			}
			l := locker(t, at(network.Open(t)))
			k, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
			ok(t, "Acquire", err)
			err = k.Seal(t.Context(), make([]byte, 5<<20), time.Hour)
			if err == nil || errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "max_allowed_packet") {
				t.Errorf("Seal: got %v, want an error that is no outage and says what to do", err)
			}
			ok(t, "Seal of a tombstone", k.Seal(t.Context(), []byte("not kept"), time.Hour))
			ok(t, "Unseal", l.Unseal(t.Context(), "k"))
		}
	})
}

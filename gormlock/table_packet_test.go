package gormlock_test

import (
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// TestTable_SealTooLarge: MySQL refuses a statement that is longer than max_allowed_packet (4 MiB
// by default on MySQL 5.7). That is no outage: to try again cannot help, and a smaller seal works.
func TestTable_SealTooLarge(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" {
			return
		}
		ok(t, "Migrate", gormlock.Migrate(db))
		for _, refusal := range []*gomysql.MySQLError{
			{Number: 1153, SQLState: [5]byte{'0', '8', 'S', '0', '1'}, Message: "Got a packet bigger than 'max_allowed_packet' bytes"},
			{Number: 1105, SQLState: [5]byte{'H', 'Y', '0', '0', '0'}, Message: "Parameter of prepared statement which is set through mysql_send_long_data() is longer than 'max_allowed_packet' bytes"},
		} {
			network := &relay{primary: pool(t, db)}
			network.exec = func(_ string, args []any, run func() (driver.Result, error)) (driver.Result, error) {
				for _, a := range args {
					if b, is := a.([]byte); is && len(b) > 4<<20 {
						return nil, refusal
					}
				}
				return run()
			}
			l := locker(t, gormlock.Table(network.open(t, db), gormlock.WithTimeout(time.Minute)))
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

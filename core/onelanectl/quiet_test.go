package main

import (
	"log/slog"
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis reports faults that tests make
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

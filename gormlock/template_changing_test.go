package gormlock_test

import (
	"context"
	"crypto/rand"
	"database/sql/driver"
	"fmt"
	"reflect"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// sealedText stands for a text that is encrypted with another nonce each time.
type sealedText string

func (s sealedText) Value() (driver.Value, error) { return rand.Text() + string(s), nil }

func (s *sealedText) Scan(value any) error { *s = sealedText(fmt.Sprintf("%s", value)); return nil }

// sealedBySerializer is the same as a serializer of its own type.
type sealedBySerializer string

func (s *sealedBySerializer) Scan(_ context.Context, _ *schema.Field, _ reflect.Value, value any) error {
	*s = sealedBySerializer(fmt.Sprintf("%s", value))
	return nil
}

func (sealedBySerializer) Value(_ context.Context, _ *schema.Field, _ reflect.Value, value any) (any, error) {
	return rand.Text() + fmt.Sprint(value), nil
}

type SealedMail struct {
	ID    uint
	Email sealedText         `gorm:"size:128"`
	Phone sealedBySerializer `gorm:"size:128"`
	Note  int
}

// A field whose stored text is another one each time makes no key: two callers would both hold
// "the" lock.
func TestTemplate_ChangingValue(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&SealedMail{}))
		j := &journal{}
		ok(t, "Use", db.Use(gormlock.New(locker(t, j.backend()))))
		mail := &SealedMail{ID: 1, Email: "ann@shop.example", Phone: "1"}
		ok(t, "Create", db.Create(mail).Error)
		for name, template := range map[string]string{"Valuer": "mail:{Email}", "serializer": "phone:{Phone}"} {
			err := db.Scopes(gormlock.Guard(template)).Model(mail).Update("note", 2).Error
			want(t, name, err, gormlock.ErrTemplate)
		}
		j.want(t, "nothing is locked")
	})
}

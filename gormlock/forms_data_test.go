package gormlock_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"
)

// Record has each kind of field.
type Record struct {
	ID       uint
	Names    []string       `gorm:"serializer:json;size:200"`
	Settings map[string]int `gorm:"serializer:json;size:200"`
	Blob     bytesOfGob     `gorm:"type:bytes;serializer:gob"`
	At       int64          `gorm:"serializer:unixtime;type:time"`
	Upper    upper          `gorm:"size:64"`
	Doc      document       `gorm:"size:200"`
	Maybe    sql.NullString `gorm:"size:64"`
	Pointer  *string        `gorm:"size:64"`
	Bytes    []byte
	Flag     bool
	Price    float64
	Made     int64  `gorm:"autoCreateTime:milli"`
	Changed  int64  `gorm:"autoUpdateTime:nano"`
	Once     string `gorm:"<-:create;size:64"`
	Never    string `gorm:"-"`
	Stamp
	Home    Place  `gorm:"embedded;embeddedPrefix:home_"`
	Work    *Place `gorm:"embedded;embeddedPrefix:work_"`
	UUID    string `gorm:"column:other_name;size:64"`
	Default string `gorm:"default:plain;size:64"`
}

type bytesOfGob struct{ Text string }

// Stamp and Place are embedded.
type Stamp struct {
	Author    string `gorm:"size:64"`
	CreatedAt time.Time
}

type Place struct {
	Town string `gorm:"size:64"`
	Zip  int
}

// upper is a custom serializer with its own type.
type upper string

func (u *upper) Scan(_ context.Context, _ *schema.Field, _ reflect.Value, value any) error {
	switch v := value.(type) {
	case []byte:
		*u = upper(strings.ToLower(string(v)))
	case string:
		*u = upper(strings.ToLower(v))
	}
	return nil
}

func (upper) Value(_ context.Context, _ *schema.Field, _ reflect.Value, value any) (any, error) {
	return strings.ToUpper(fmt.Sprint(value)), nil
}

// document is a Valuer and a Scanner.
type document struct{ Title string }

func (d document) Value() (driver.Value, error) { b, err := json.Marshal(d); return string(b), err }

func (d *document) Scan(value any) error {
	b, isBytes := value.([]byte)
	if !isBytes {
		b = []byte(fmt.Sprint(value))
	}
	return json.Unmarshal(bytes.TrimSpace(b), d)
}

// TestForms_Data writes and reads each kind of field.
func TestForms_Data(t *testing.T) {
	text := "there"
	record := func(id uint) *Record {
		return &Record{
			ID: id, Names: []string{"a", "b"}, Settings: map[string]int{"x": 1}, Blob: bytesOfGob{"gob"}, At: 1_700_000_000, Upper: "low",
			Doc: document{"title"}, Maybe: sql.NullString{String: "s", Valid: true}, Pointer: &text, Bytes: []byte{0, 1, 255}, Flag: true,
			Price: 1.25, Once: "first", Never: "no", Stamp: Stamp{Author: "me"}, Home: Place{"Ulm", 1}, Work: &Place{"Bonn", 2}, UUID: "u",
		}
	}
	compareForms(t, chapter{
		models:  []any{&Record{}},
		fixture: func() []any { return []any{record(1), &Record{ID: 2, Doc: document{"empty"}}} },
		forms: []form{
			reading("Find", func(db *gorm.DB, r *[]Record) *gorm.DB { return db.Order("id").Find(r) }),
			reading("condition on a serialized field", func(db *gorm.DB, r *Record) *gorm.DB {
				return db.Where("doc = ? AND home_town = ?", document{"title"}, "Ulm").Take(r)
			}),
			reading("condition by struct", func(db *gorm.DB, r *Record) *gorm.DB {
				return db.Where(&Record{Stamp: Stamp{Author: "me"}, Home: Place{Town: "Ulm"}}).Take(r)
			}),
			writing("Create", func(db *gorm.DB) *gorm.DB { return db.Create(record(9)) }),
			writing("Create, batch", func(db *gorm.DB) *gorm.DB { return db.Create([]*Record{record(8), {ID: 9}}) }),
			writing("Save", func(db *gorm.DB) *gorm.DB { r := record(2); r.Once = "second"; return db.Save(r) }),
			writing("Updates", func(db *gorm.DB) *gorm.DB {
				return db.Model(&Record{ID: 1}).Updates(Record{Names: []string{"c"}, Work: &Place{Town: "Kiel"}, Upper: "new", Once: "no"})
			}),
			writing("Update, serialized", func(db *gorm.DB) *gorm.DB { return db.Model(&Record{ID: 1}).Update("settings", map[string]int{"y": 2}) }),
			writing("Updates, map", func(db *gorm.DB) *gorm.DB {
				return db.Model(&Record{ID: 1}).Updates(map[string]any{"home_zip": 9, "Maybe": nil, "doc": document{"new"}})
			}),
			writing("Updates, all columns", func(db *gorm.DB) *gorm.DB {
				return db.Model(&Record{ID: 1}).Select("*").Omit("id").Updates(Record{Doc: document{"all"}})
			}),
			writing("Delete by struct", func(db *gorm.DB) *gorm.DB { return db.Where(&Record{UUID: "u"}).Delete(&Record{}) }),
		},
	})
}

// Diary notes its hooks in the *notes of its context, and fails in the hook that it names.
type Diary struct {
	ID   uint
	Text string `gorm:"size:64"`
	Mood string `gorm:"size:64"`
}

type notesKey struct{}

func (d *Diary) hook(tx *gorm.DB, hook string) error {
	n, _ := tx.Statement.Context.Value(notesKey{}).(*notes)
	if n == nil {
		return nil
	}
	flag, has := tx.Get("flag")
	n.note(hook, d.ID, flag, has)
	switch d.Text {
	case "fail in " + hook:
		return errHook
	case "write in " + hook:
		return tx.Session(&gorm.Session{NewDB: true}).Create(&Visit{Page: hook}).Error
	}
	return nil
}

func (d *Diary) BeforeSave(tx *gorm.DB) error { return d.hook(tx, "BeforeSave") }
func (d *Diary) AfterSave(tx *gorm.DB) error  { return d.hook(tx, "AfterSave") }
func (d *Diary) BeforeCreate(tx *gorm.DB) error {
	d.Mood = "created"
	return d.hook(tx, "BeforeCreate")
}
func (d *Diary) AfterCreate(tx *gorm.DB) error { return d.hook(tx, "AfterCreate") }
func (d *Diary) BeforeUpdate(tx *gorm.DB) error {
	if tx.Statement.Changed("Text") {
		tx.Statement.SetColumn("Mood", "changed")
	}
	return d.hook(tx, "BeforeUpdate")
}
func (d *Diary) AfterUpdate(tx *gorm.DB) error  { return d.hook(tx, "AfterUpdate") }
func (d *Diary) BeforeDelete(tx *gorm.DB) error { return d.hook(tx, "BeforeDelete") }
func (d *Diary) AfterDelete(tx *gorm.DB) error  { return d.hook(tx, "AfterDelete") }
func (d *Diary) AfterFind(tx *gorm.DB) error    { return d.hook(tx, "AfterFind") }

// TestForms_Hooks runs hooks that note, change, write and fail, with values in contexts.
func TestForms_Hooks(t *testing.T) {
	at := func(db *gorm.DB, n *notes) *gorm.DB {
		ctx := context.WithValue(db.Statement.Context, notesKey{}, n)
		return db.WithContext(ctx).Set("flag", "set").Session(&gorm.Session{})
	}
	var forms []form
	add := func(name string, write func(db *gorm.DB) *gorm.DB) {
		forms = append(forms, form{name, never, func(db *gorm.DB, n *notes) error { return n.rows(write(at(db, n))) }})
	}
	for _, text := range []string{"text", "fail in BeforeSave", "fail in AfterCreate", "write in BeforeCreate", "write in AfterSave",
		"fail in AfterUpdate", "write in AfterUpdate"} {
		add("Create: "+text, func(db *gorm.DB) *gorm.DB { return db.Create(&Diary{ID: 9, Text: text}) })
		add("Save: "+text, func(db *gorm.DB) *gorm.DB { return db.Save(&Diary{ID: 1, Text: text}) })
	}
	for _, text := range []string{"text", "fail in BeforeDelete", "fail in AfterDelete", "write in AfterDelete"} {
		add("Delete: "+text, func(db *gorm.DB) *gorm.DB { return db.Delete(&Diary{ID: 1, Text: text}) })
	}
	add("Create of several", func(db *gorm.DB) *gorm.DB { return db.Create(&[]Diary{{ID: 8}, {ID: 9, Text: "write in AfterCreate"}}) })
	add("Create of several, failing", func(db *gorm.DB) *gorm.DB { return db.Create(&[]Diary{{ID: 8}, {ID: 9, Text: "fail in AfterCreate"}}) })
	add("Updates", func(db *gorm.DB) *gorm.DB { return db.Model(&Diary{ID: 1, Text: "old"}).Updates(Diary{Text: "new"}) })
	add("UpdateColumn", func(db *gorm.DB) *gorm.DB { return db.Model(&Diary{ID: 1}).UpdateColumn("text", "new") })
	add("SkipHooks", func(db *gorm.DB) *gorm.DB {
		return db.Session(&gorm.Session{SkipHooks: true}).Create(&Diary{ID: 9, Text: "fail in BeforeSave"})
	})
	forms = append(forms,
		form{"AfterFind", byGuard, func(db *gorm.DB, n *notes) error {
			var d []Diary
			return n.read(at(db, n).Order("id").Find(&d), &d)
		}},
		form{"after an error", never, func(db *gorm.DB, n *notes) error {
			err := at(db, n).Create(&Diary{ID: 9, Text: "fail in BeforeSave"}).Error
			n.note(errors.Is(err, errHook)) // nothing was sent, so that a block goes on
			return at(db, n).Create(&Diary{ID: 10, Text: "next"}).Error
		}})
	compareForms(t, chapter{
		models:  []any{&Diary{}, &Visit{}},
		fixture: func() []any { return []any{&[]Diary{{ID: 1, Text: "one"}, {ID: 2, Text: "two"}}} },
		forms:   forms,
	})
}

//go:build !race

package redisbackend

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/ast"
	"github.com/yuin/gopher-lua/parse"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// simLua runs the package's scripts in this process, for one node at a time. It is stricter than
// Redis: a script that makes a text of a number in Lua's own way fails, because Lua prints 14 digits.
type simLua struct {
	state   *lua.LState
	scripts map[string]*lua.LFunction // by source
	node    *simNode                  // whose script runs
}

func newSimLua() *simLua {
	l := &simLua{state: lua.NewState(lua.Options{SkipOpenLibs: true}), scripts: make(map[string]*lua.LFunction)}
	for name, open := range map[string]lua.LGFunction{
		"": lua.OpenBase, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath, lua.TabLibName: lua.OpenTable,
	} {
		l.state.Push(l.state.NewFunction(open))
		l.state.Push(lua.LString(name))
		l.state.Call(1, 0)
	}
	redis := l.state.NewTable()
	redis.RawSetString("call", l.state.NewFunction(func(s *lua.LState) int { return l.call(s, true) }))
	redis.RawSetString("pcall", l.state.NewFunction(func(s *lua.LState) int { return l.call(s, false) }))
	l.state.SetGlobal("redis", redis)
	l.state.SetGlobal("concat", l.state.NewFunction(func(s *lua.LState) int {
		for i := 1; i <= 2; i++ {
			if s.Get(i).Type() != lua.LTString {
				s.RaiseError("a %s becomes a text: use string.format('%%.0f')", s.Get(i).Type())
			}
		}
		s.Push(lua.LString(s.CheckString(1) + s.CheckString(2)))
		return 1
	}))
	l.state.SetGlobal("tostring", lua.LNil)
	l.state.SetGlobal("KEYS", lua.LNil)
	l.state.SetGlobal("ARGV", lua.LNil)
	guard := l.state.NewTable() // a script in Redis cannot make globals
	guard.RawSetString("__newindex", l.state.NewFunction(func(s *lua.LState) int {
		s.RaiseError("a script attempted to create the global variable %s", s.Get(2))
		return 0
	}))
	l.state.SetMetatable(l.state.Get(lua.GlobalsIndex), guard)
	return l
}

// compile makes a function of a script.
func (l *simLua) compile(source string) *lua.LFunction {
	if f := l.scripts[source]; f != nil {
		return f
	}
	chunk, err := parse.Parse(strings.NewReader(source), "script")
	if err != nil {
		panic(err)
	}
	checkConcatenations(reflect.ValueOf(chunk))
	proto, err := lua.Compile(chunk, "script")
	if err != nil {
		panic(err)
	}
	l.scripts[source] = l.state.NewFunctionFromProto(proto)
	return l.scripts[source]
}

// checkConcatenations replaces each a .. b by concat(a, b).
func checkConcatenations(v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			checkConcatenations(v.Index(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			checkConcatenations(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				checkConcatenations(v.Field(i))
			}
		}
	case reflect.Interface:
		if v.IsNil() {
			return
		}
		checkConcatenations(v.Elem())
		if e, ok := v.Interface().(*ast.StringConcatOpExpr); ok {
			v.Set(reflect.ValueOf(&ast.FuncCallExpr{Func: &ast.IdentExpr{Value: "concat"}, Args: []ast.Expr{e.Lhs, e.Rhs}, AdjustRet: true}))
		}
	}
}

// run runs a script on a node, at the node's time.
func (l *simLua) run(n *simNode, source string, keys, argv []string) (any, error) {
	l.node = n
	f := l.compile(source)
	texts := func(list []string) *lua.LTable {
		t := l.state.CreateTable(len(list), 0)
		for _, s := range list {
			t.Append(lua.LString(s))
		}
		return t
	}
	globals := l.state.Get(lua.GlobalsIndex).(*lua.LTable)
	globals.RawSetString("KEYS", texts(keys))
	globals.RawSetString("ARGV", texts(argv))
	if err := l.state.CallByParam(lua.P{Fn: f, NRet: 1, Protect: true}); err != nil {
		return nil, driver.ReplyError("ERR " + err.Error())
	}
	v := l.state.Get(-1)
	l.state.Pop(1)
	return simAnswer(v)
}

// simAnswer is what Redis answers for a script's value.
func simAnswer(v lua.LValue) (any, error) {
	switch v := v.(type) {
	case lua.LNumber:
		return int64(v), nil
	case lua.LString:
		return string(v), nil
	case lua.LBool:
		if v {
			return int64(1), nil
		}
		return nil, nil
	case *lua.LTable:
		if e, ok := v.RawGetString("err").(lua.LString); ok {
			return nil, driver.ReplyError(e)
		}
		list := []any{}
		for i := 1; v.RawGetInt(i) != lua.LNil; i++ {
			element, _ := simAnswer(v.RawGetInt(i))
			list = append(list, element)
		}
		return list, nil
	default:
		return nil, nil
	}
}

// call is redis.call and redis.pcall.
func (l *simLua) call(s *lua.LState, raise bool) int {
	words := make([]string, s.GetTop())
	for i := range words {
		switch v := s.Get(i + 1).(type) {
		case lua.LString:
			words[i] = string(v)
		case lua.LNumber:
			words[i] = simNumber(float64(v))
		default:
			s.RaiseError("Lua redis lib command arguments must be strings or integers")
		}
	}
	v, err := l.node.command(words)
	switch v := v.(type) {
	case nil:
		s.Push(lua.LFalse)
	case int64:
		s.Push(lua.LNumber(v))
	case string:
		s.Push(lua.LString(v))
	case []string:
		t := s.NewTable()
		for _, e := range v {
			t.Append(lua.LString(e))
		}
		s.Push(t)
	}
	if err != nil {
		if raise {
			s.RaiseError("%s", err)
		}
		t := s.NewTable()
		t.RawSetString("err", lua.LString(err.Error()))
		s.Pop(1)
		s.Push(t)
	}
	return 1
}

// simNumber prints a number as Redis does for a command.
func simNumber(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1<<63 {
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', 17, 64)
}

// simNode is a Redis with the commands that the scripts of a quorum use.
type simNode struct {
	clock   func() int64 // µs
	started int64        // µs, by its clock
	saves   int64        // every so many seconds, for LASTSAVE; 0: never
	denied  string       // commands that its ACL forbids
	runID   string
	data    map[string]simEntry
	changed bool // since the last look
}

type simEntry struct {
	text string
	ends int64 // ms, by its clock; 0: never
}

func (n *simNode) get(key string) (simEntry, bool) {
	e, ok := n.data[key]
	if ok && e.ends != 0 && n.clock()/1000 > e.ends {
		delete(n.data, key)
		return simEntry{}, false
	}
	return e, ok
}

var errSimInteger = errors.New("ERR value is not an integer or out of range")

func (n *simNode) command(words []string) (any, error) {
	name := strings.ToUpper(words[0])
	if strings.Contains(n.denied, name) {
		return nil, fmt.Errorf("NOPERM this user has no permissions to run the '%s' command", name)
	}
	now := n.clock()
	life := func(text string) (int64, error) {
		px, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, errSimInteger
		}
		return now/1000 + px, nil
	}
	switch name + strconv.Itoa(len(words)) {
	case "GET2":
		if e, ok := n.get(words[1]); ok {
			return e.text, nil
		}
		return nil, nil
	case "SET5":
		ends, err := life(words[4])
		if err != nil || words[3] != "PX" {
			return nil, errSimInteger
		}
		if ends <= now/1000 {
			return nil, errors.New("ERR invalid expire time in 'set' command")
		}
		n.data[words[1]], n.changed = simEntry{words[2], ends}, true
		return "OK", nil
	case "DEL2":
		_, ok := n.get(words[1])
		delete(n.data, words[1])
		n.changed = n.changed || ok
		return map[bool]int64{true: 1}[ok], nil
	case "PTTL2":
		e, ok := n.get(words[1])
		if !ok {
			return int64(-2), nil
		}
		return e.ends - now/1000, nil
	case "PEXPIRE3":
		e, ok := n.get(words[1])
		ends, err := life(words[2])
		if !ok || err != nil {
			return int64(0), err
		}
		e.ends = ends
		n.data[words[1]], n.changed = e, true
		return int64(1), nil
	case "TIME1":
		return []string{strconv.FormatInt(now/1e6, 10), strconv.FormatInt(now%1e6, 10)}, nil
	case "LASTSAVE1":
		saved := n.started / 1e6
		if n.saves > 0 && now > n.started {
			saved += (now - n.started) / 1e6 / n.saves * n.saves
		}
		return saved, nil
	case "INFO2":
		return fmt.Sprintf("# Server\r\nrun_id:%s\r\nuptime_in_seconds:%d\r\n", n.runID, now/1e6-n.started/1e6), nil
	case "PUBLISH3":
		return int64(0), nil
	default:
		return nil, fmt.Errorf("ERR the simulated node does not know %q", words)
	}
}

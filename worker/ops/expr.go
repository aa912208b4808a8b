package ops

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// node is one value of a parsed expression.
type node struct {
	op    string  // an operator or function; "" for a constant, "name" for an input
	name  string  // of an input
	value any     // of a constant: bool, int64, float64 or complex128
	args  []*node // operands
	at    int     // position in the source, for errors
}

// Expressions come from untrusted clients, so their size is limited.
const (
	maxExprBytes = 64 << 10
	maxExprDepth = 200
)

// arity is the number of arguments of each function that an expression can call.
var arity = map[string]int{
	"where": 3, "clip": 3,
	"minimum": 2, "maximum": 2, "arctan2": 2, "hypot": 2, "power": 2,
	"abs": 1, "sqrt": 1, "square": 1, "cbrt": 1, "reciprocal": 1, "sign": 1,
	"exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1,
	"sin": 1, "cos": 1, "tan": 1, "arcsin": 1, "arccos": 1, "arctan": 1,
	"sinh": 1, "cosh": 1, "tanh": 1, "arcsinh": 1, "arccosh": 1, "arctanh": 1,
	"floor": 1, "ceil": 1, "trunc": 1, "round": 1,
	"isnan": 1, "isinf": 1, "isfinite": 1, "conj": 1, "real": 1, "imag": 1, "angle": 1,
}

var constants = map[string]any{
	"pi": math.Pi, "e": math.E, "nan": math.NaN(), "inf": math.Inf(1), "True": true, "False": false, "true": true, "false": false,
}

// precedence has the binding powers of the binary operators, as in Python. Comparisons cannot be
// chained.
var precedence = map[string]int{
	"==": 1, "!=": 1, "<": 1, "<=": 1, ">": 1, ">=": 1,
	"|": 2, "^": 3, "&": 4,
	"+": 5, "-": 5,
	"*": 6, "/": 6, "//": 6, "%": 6,
	"**": 8,
}

// unaryPower lies between the binding power of multiplication and that of "**": -x**2 is -(x**2).
const unaryPower = 7

type syntaxError struct {
	at      int
	message string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("at character %d: %s", e.at+1, e.message) }

type parser struct {
	source string
	at     int    // start of the current token
	next   int    // end of the current token
	token  string // "" at the end
	depth  int
}

// parseExpr parses an element-wise expression: Python's operators on inputs, numbers and the
// functions of arity.
func parseExpr(source string) (root *node, err error) {
	if len(source) > maxExprBytes {
		return nil, &syntaxError{0, fmt.Sprintf("%d bytes are more than the limit of %d", len(source), maxExprBytes)}
	}
	p := &parser{source: source}
	defer func() {
		if r := recover(); r != nil {
			syntax, ok := r.(*syntaxError)
			if !ok {
				panic(r)
			}
			root, err = nil, syntax
		}
	}()
	p.advance()
	root = p.binary(0)
	if p.token != "" {
		p.fail("expected an operator or the end, got %q", p.token)
	}
	return root, nil
}

func (p *parser) fail(format string, values ...any) {
	panic(&syntaxError{p.at, fmt.Sprintf(format, values...)})
}

func isLetter(b byte) bool { return b == '_' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' }
func isDigit(b byte) bool  { return b >= '0' && b <= '9' }

// advance moves to the next token.
func (p *parser) advance() {
	s := p.source
	for p.next < len(s) && strings.IndexByte(" \t\r\n", s[p.next]) >= 0 {
		p.next++
	}
	p.at = p.next
	rest := s[p.at:]
	end := 0
	switch {
	case rest == "":
	case isLetter(rest[0]):
		for end < len(rest) && (isLetter(rest[end]) || isDigit(rest[end])) {
			end++
		}
	case isDigit(rest[0]) || rest[0] == '.':
		for end < len(rest) {
			exponentSign := (rest[end] == '+' || rest[end] == '-') && (rest[end-1] == 'e' || rest[end-1] == 'E')
			if !isDigit(rest[end]) && !isLetter(rest[end]) && rest[end] != '.' && (!exponentSign || strings.HasPrefix(rest, "0x")) {
				break
			}
			end++
		}
	case slices.Contains([]string{"**", "//", "==", "!=", "<=", ">="}, rest[:min(2, len(rest))]):
		end = 2
	case strings.IndexByte("+-*/%<>&|^~(),", rest[0]) >= 0:
		end = 1
	default:
		p.fail("unexpected character %q", []rune(rest)[0])
	}
	p.token, p.next = rest[:end], p.at+end
}

func (p *parser) expect(token string) {
	if p.token != token {
		p.fail("expected %q, got %s", token, p.got())
	}
	p.advance()
}

func (p *parser) got() string {
	if p.token == "" {
		return "the end"
	}
	return strconv.Quote(p.token)
}

func (p *parser) nest() {
	if p.depth++; p.depth > maxExprDepth {
		p.fail("nested deeper than %d levels", maxExprDepth)
	}
}

// binary parses operators that bind at least as strongly as power.
func (p *parser) binary(power int) *node {
	p.nest()
	defer func() { p.depth-- }()
	left := p.unary()
	height := 0
	for {
		op, at := p.token, p.at
		strength, ok := precedence[op]
		switch {
		case op == "and" || op == "or" || op == "not" || op == "if":
			p.fail("%q has no element-wise meaning: use &, |, ~ or where()", op)
		case !ok || strength < power:
			return left
		case strength == 1 && left.op != "" && precedence[left.op] == 1 && p.source[left.at] != '(':
			p.fail("comparisons cannot be chained: join them with &, each in parentheses")
		}
		// A long chain of operators is a deep tree, and the functions that walk it recurse as deep.
		if height++; p.depth+height > maxExprDepth {
			p.fail("nested deeper than %d levels", maxExprDepth)
		}
		p.advance()
		tighter := strength + 1
		if op == "**" {
			tighter = unaryPower // right associative; allows 2**-x
		}
		left = &node{op: op, args: []*node{left, p.binary(tighter)}, at: at}
	}
}

func (p *parser) unary() *node {
	op, at := p.token, p.at
	switch op {
	case "-", "+", "~":
		p.advance()
		operand := p.binary(unaryPower)
		switch op {
		case "+":
			return operand
		case "-":
			op = "neg"
		}
		return &node{op: op, args: []*node{operand}, at: at}
	}
	return p.primary()
}

func (p *parser) primary() *node {
	token, at := p.token, p.at
	switch {
	case token == "":
		p.fail("expected a value, got the end")
	case token == "(":
		p.advance()
		inner := p.binary(0)
		p.expect(")")
		copied := *inner
		copied.at = at
		return &copied
	case token == "not":
		p.fail("%q has no element-wise meaning: use ~", token)
	case isLetter(token[0]):
		p.advance()
		if p.token == "(" {
			return p.function(token, at)
		}
		if value, ok := constants[token]; ok {
			return &node{value: value, at: at}
		}
		return &node{op: "name", name: token, at: at}
	case isDigit(token[0]) || token[0] == '.':
		value, ok := parseNumber(token)
		if !ok {
			p.fail("%q is not a number", token)
		}
		p.advance()
		return &node{value: value, at: at}
	}
	p.fail("expected a value, got %q", token)
	return nil
}

func (p *parser) function(name string, at int) *node {
	want, ok := arity[name]
	if !ok {
		names := make([]string, 0, len(arity))
		for f := range arity {
			names = append(names, f)
		}
		slices.Sort(names)
		panic(&syntaxError{at, fmt.Sprintf("unknown function %s%s", name, suggest(name, names))})
	}
	p.advance()
	var args []*node
	for p.token != ")" {
		if len(args) > 0 {
			p.expect(",")
		}
		args = append(args, p.binary(0))
	}
	p.advance()
	if len(args) != want {
		panic(&syntaxError{at, fmt.Sprintf("%s takes %d arguments, got %d", name, want, len(args))})
	}
	switch name {
	case "power":
		name = "**"
	case "clip":
		low := &node{op: "maximum", args: args[:2], at: at}
		return &node{op: "minimum", args: []*node{low, args[2]}, at: at}
	}
	return &node{op: name, args: args, at: at}
}

// parseNumber parses an int, a float or, if it ends in j, an imaginary number.
func parseNumber(token string) (any, bool) {
	if strings.Contains(token, "_") {
		return nil, false
	}
	if digits, ok := strings.CutSuffix(token, "j"); ok {
		f, err := strconv.ParseFloat(digits, 64)
		return complex(0, f), err == nil
	}
	if strings.HasPrefix(token, "0x") || strings.IndexFunc(token, func(r rune) bool { return r < '0' || r > '9' }) < 0 {
		n, err := strconv.ParseInt(strings.TrimPrefix(token, "0x"), map[bool]int{true: 16, false: 10}[strings.HasPrefix(token, "0x")], 64)
		return n, err == nil
	}
	f, err := strconv.ParseFloat(token, 64)
	return f, err == nil
}

// exprCache keeps parsed expressions, which are never changed. A graph uses the same few
// expressions many times. When the cache is full, it is emptied.
type exprCache struct {
	mu sync.Mutex // guards the fields below
	// parsed has the source as key; programs has a key of all that a program depends on: see
	// programKey.
	parsed   map[string]*node
	programs map[string]*program
}

const (
	maxCachedExprs = 1024
	// maxProgramKey is the largest size of a key in bytes. Programs with longer keys are not kept.
	maxProgramKey = 4 << 10
)

// compile returns the program of an expression for the inputs; it compiles the program if it is not
// cached. Errors are not kept.
func (c *exprCache) compile(source string, root *node, names []string, inputs []compiled, want DType) (*program, error) {
	var room [256]byte
	key := programKey(room[:0], source, names, inputs, want)
	c.mu.Lock()
	p := c.programs[string(key)]
	c.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := compile(root, names, inputs, want)
	if err != nil || len(key) > maxProgramKey {
		return p, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.programs == nil || len(c.programs) >= maxCachedExprs {
		c.programs = map[string]*program{}
	}
	c.programs[string(key)] = p
	return p, nil
}

// programKey appends all that the result of compile depends on: the source, the wanted type, the
// names, and for each input its type or the bits of its value.
func programKey(key []byte, source string, names []string, inputs []compiled, want DType) []byte {
	key = append(key, byte(want), byte(len(names)))
	key = binary.AppendUvarint(key, uint64(len(source)))
	key = append(key, source...)
	for i, name := range names {
		key = append(append(binary.AppendUvarint(key, uint64(len(name))), name...), byte(inputs[i].dtype))
		switch v := inputs[i].value.(type) {
		case nil:
			key = append(key, 't')
		case bool:
			key = append(key, 'b', truth(v))
		case int64:
			key = binary.LittleEndian.AppendUint64(append(key, 'i'), uint64(v))
		case float64:
			key = binary.LittleEndian.AppendUint64(append(key, 'f'), math.Float64bits(v))
		case complex128:
			key = binary.LittleEndian.AppendUint64(append(key, 'c'), math.Float64bits(real(v)))
			key = binary.LittleEndian.AppendUint64(key, math.Float64bits(imag(v)))
		}
	}
	return key
}

func (c *exprCache) parse(source string) (*node, error) {
	c.mu.Lock()
	root, ok := c.parsed[source]
	c.mu.Unlock()
	if ok {
		return root, nil
	}
	root, err := parseExpr(source)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parsed == nil || len(c.parsed) >= maxCachedExprs {
		c.parsed = map[string]*node{}
	}
	c.parsed[source] = root
	return root, nil
}

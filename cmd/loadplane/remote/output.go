package remote

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// maxText bounds a text from outside in a line, bytes.
const maxText = 256

// Screen is where the answer to a question is written. It is for one goroutine.
type Screen struct {
	io.Writer
	// Columns is the width of the terminal, in characters; 0 where it is none.
	Columns int
}

// Output is the flag -o. It is for one goroutine.
type Output struct {
	value   string
	allowed []string
}

// Register adds the flag to fs; the first of the allowed formats is the
// default.
func (o *Output) Register(fs *pflag.FlagSet, allowed ...string) {
	o.allowed = allowed
	fs.StringVarP(&o.value, "output", "o", allowed[0], strings.Join(allowed, ", "))
}

// Format returns the format, or a *UsageError for one that is not allowed.
func (o *Output) Format() (string, error) {
	if !slices.Contains(o.allowed, o.value) {
		return "", Usagef("--output: %q is not one of %s", o.value, strings.Join(o.allowed, ", "))
	}
	return o.value, nil
}

// optional shows a number, or a dash where it is unknown.
func optional[T any](v *T, format string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v)
}

// percent shows a ratio, or a dash where it is unknown.
func percent(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", *v*100)
}

// short shows a count, or a dash where it is unknown.
func short(v *int64) string {
	if v == nil {
		return "-"
	}
	return Short(*v)
}

// Short shows a count from 0 in at most five characters.
func Short(v int64) string {
	n, units := float64(v), []string{"", "k", "M", "G", "T", "P"}
	for n >= 9999.5 && len(units) > 1 {
		n, units = n/1000, units[1:]
	}
	return fmt.Sprintf("%.0f%s", n, units[0])
}

// Age shows milliseconds in at most six characters.
func Age(ms uint64) string {
	switch {
	case ms < 10_000:
		return fmt.Sprintf("%dms", ms)
	case ms < 600_000:
		return fmt.Sprintf("%ds", ms/1000)
	case ms < 36_000_000:
		return fmt.Sprintf("%dm", ms/60_000)
	}
	return fmt.Sprintf("%dh", min(ms/3_600_000, 99_999))
}

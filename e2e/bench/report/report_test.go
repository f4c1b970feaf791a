package report

import (
	"bytes"
	"strings"
	"testing"
)

// Ratios are of the runs side by side, and the median is of them.
func TestTable(t *testing.T) {
	r := New(&bytes.Buffer{})
	for run, v := range [][2]float64{{50, 100}, {90, 100}, {60, 100}} {
		for i, of := range []string{"plane", "stock"} {
			if err := r.Add(Record{Part: "line", Case: "saturated", Of: of, Run: run, Values: Values{ReportRate: v[i], ServerCores: v[i] / 100}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var out bytes.Buffer
	if err := r.Table(&out); err != nil {
		t.Fatal(err)
	}
	flat := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"line saturated plane / stock reports/s 0.60 0.50 to 0.90",
		"line saturated plane reports/s 60.0 50.0 to 90.0",
		"NOT PINNED",
		"NOT SATURATED: saturated, plane used 0.50 cores",
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 1.234: "1.23", 12.34: "12.3", -12.34: "-12.3", 123.4: "123", 123456.7: "123457"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) is %q, want %q", v, got, want)
		}
	}
}

// The innermost package that is not Go's own is the cause, but for what the
// runtime does by itself.
func TestCause(t *testing.T) {
	for _, c := range []struct {
		want  string
		stack []string
	}{
		{"store", []string{"runtime.mallocgc", "github.com/loadplane/loadplane/store.decide", "main.main"}},
		{"garbage collection", []string{"runtime.scanobject", "runtime.gcAssistAlloc", "github.com/loadplane/loadplane/store.decide"}},
		{"scheduler (system calls)", []string{"internal/runtime/syscall.Syscall6", "runtime.netpoll", "runtime.findRunnable", "runtime.schedule"}},
		{"google.golang.org/grpc/internal/transport", []string{"runtime.memmove", "google.golang.org/grpc/internal/transport.(*http2Server).handleData"}},
		{"google.golang.org/grpc", []string{"google.golang.org/grpc.(*GenericServerStream[go.shape.github.com/a/b.c]).Recv"}},
		{"net/http (system calls)", []string{"internal/runtime/syscall.Syscall6", "syscall.write", "net.(*conn).Write", "net/http.(*http2Framer).endWrite"}},
		{"runtime", []string{"runtime.usleep", "runtime.sysmon"}},
	} {
		if got := cause(c.stack); got != c.want {
			t.Errorf("cause of %q is %q, want %q", c.stack, got, c.want)
		}
	}
}

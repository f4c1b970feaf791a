package consumers

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// limit is how long a test waits for anything.
const limit = 30 * time.Second

// program is the path of the built binary, scratch a folder for what else is
// built.
var program, scratch string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "loadplane-consumers")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program, scratch = filepath.Join(dir, "loadplane"), dir
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/loadplane").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s\n%v\n", out, err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// process is a running command.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	// out and errors have the lines that it wrote.
	out, errors chan string
	exited      chan struct{}
}

// start runs a command, and kills it when the test ends.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{
		t: t, cmd: exec.Command(name, args...),
		out: make(chan string, 10_000), errors: make(chan string, 10_000), exited: make(chan struct{}),
	}
	p.cmd.Env = environ()
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{}, 2)
	go pump(stdout, p.out, read)
	go pump(stderr, p.errors, read)
	go func() {
		<-read
		<-read
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.kill)
	return p
}

// environ leaves out the settings of the tests, which are none of the service.
func environ() (env []string) {
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "LOADPLANE_") {
			env = append(env, kv)
		}
	}
	return append(env, "PYTHONDONTWRITEBYTECODE=1")
}

// pump sends lines, and drops them when nobody wants so many.
func pump(r io.Reader, to chan<- string, done chan<- struct{}) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		select {
		case to <- lines.Text():
		default:
		}
	}
	close(to)
	done <- struct{}{}
}

// kill ends the process as kill -9 does, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// complaints returns what the process wrote to standard error so far.
func (p *process) complaints() string {
	var all []string
	for {
		select {
		case line, ok := <-p.errors:
			if ok {
				all = append(all, line)
				continue
			}
		default:
		}
		return strings.Join(all, "\n")
	}
}

// next returns the next of some lines that match accepts.
func (p *process) next(from <-chan string, match func(string) bool) string {
	p.t.Helper()
	expired := time.After(limit)
	for {
		select {
		case line, ok := <-from:
			if !ok {
				p.t.Fatalf("%s ended: %s", p.cmd, p.complaints())
			}
			if match(line) {
				return line
			}
		case <-expired:
			p.t.Fatalf("%s did not say it: %s", p.cmd, p.complaints())
		}
	}
}

// fleet starts simulated engines and returns their URLs.
func fleet(t *testing.T, args ...string) (p *process, urls []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "workers.yaml")
	p = start(t, program, append([]string{"sim", "--write-workers=" + file}, args...)...)
	p.next(p.out, func(line string) bool {
		if strings.HasPrefix(line, "http") {
			urls = append(urls, line)
		}
		return strings.HasPrefix(line, "serve them with")
	})
	return p, urls
}

// serve starts a plane and returns the address of its API.
func serve(t *testing.T, args ...string) (p *process, api string) {
	t.Helper()
	p = start(t, program, append([]string{"serve", "--log-format=json", "--ops-listen=127.0.0.1:0"}, args...)...)
	var said struct{ Listener, Address string }
	p.next(p.errors, func(line string) bool {
		return strings.Contains(line, `"msg":"listening"`) && json.Unmarshal([]byte(line), &said) == nil && said.Listener == "api"
	})
	return p, said.Address
}

package browser

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// limit is how long a test waits for anything.
const limit = 40 * time.Second

// scratch is a folder for what is built.
var scratch string

func TestMain(m *testing.M) { os.Exit(runIn(m)) }

func runIn(m *testing.M) int {
	dir, err := os.MkdirTemp("", "loadplane-browser")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	scratch = dir
	code := m.Run()
	chromium.stop()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// program builds the binary once, and returns its path.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "loadplane")
	if out, err := exec.Command("go", "build", "-o", path, "../../cmd/loadplane").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// process is a running command of the program.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	// out and errors have the lines that it wrote.
	out, errors chan string
	exited      chan struct{}
}

// start runs the program, and kills it when the test ends.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{
		t: t, cmd: exec.Command(path, args...),
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
	return env
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

// next returns the next of some lines that match accepts.
func (p *process) next(from <-chan string, match func(string) bool) string {
	p.t.Helper()
	expired := time.After(limit)
	var seen []string
	for {
		select {
		case line, ok := <-from:
			if !ok {
				p.t.Fatalf("%s ended: %s", p.cmd, strings.Join(seen, "\n"))
			}
			if match(line) {
				return line
			}
			seen = append(seen, line)
		case <-expired:
			p.t.Fatalf("%s did not say it: %s", p.cmd, strings.Join(seen, "\n"))
		}
	}
}

// fleet starts simulated engines and returns their URLs.
func fleet(t *testing.T, args ...string) (p *process, urls []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "workers.yaml")
	p = start(t, append([]string{"sim", "--write-workers=" + file}, args...)...)
	p.next(p.out, func(line string) bool {
		if strings.HasPrefix(line, "http") {
			urls = append(urls, line)
		}
		return strings.HasPrefix(line, "serve them with")
	})
	return p, urls
}

// ports makes a plane take free ones.
var ports = []string{
	"--log-format=json", "--log-level=info",
	"--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0",
}

// serve starts a plane, by the command serve or demo, and returns the address
// of its API.
func serve(t *testing.T, command string, args ...string) (p *process, api string) {
	t.Helper()
	p = start(t, append(append([]string{command}, ports...), args...)...)
	var said struct{ Listener, Address string }
	p.next(p.errors, func(line string) bool {
		return strings.Contains(line, `"msg":"listening"`) && json.Unmarshal([]byte(line), &said) == nil && said.Listener == "api"
	})
	return p, said.Address
}

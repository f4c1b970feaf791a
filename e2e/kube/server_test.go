package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// bin is where "make test-kube" puts the programs.
var bin = filepath.Join("..", "..", "bin")

// shared is the API server of all tests but those that stop theirs.
var shared *apiServer

func TestMain(m *testing.M) { os.Exit(serveAndRun(m)) }

func serveAndRun(m *testing.M) int {
	for _, name := range []string{"kube-apiserver", "kubelist", "loadplane"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			fmt.Fprintf(os.Stderr, "%v; run \"make test-kube\"\n", err)
			return 1
		}
	}
	folder, err := os.MkdirTemp("", "loadplane-kube")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if shared, err = newServer(folder); err == nil {
		err = shared.start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer shared.stop()
	return m.Run()
}

const adminToken = "admin-of-the-tests"

// apiServer is a kube-apiserver in a process of its own. Its data, certificate,
// keys and port outlive a stop and a start. One goroutine may use it.
type apiServer struct {
	folder string
	port   int
	cmd    *exec.Cmd
	exited chan struct{}
	said   output
}

// output keeps what a process writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// tail returns the last lines.
func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(o.buf.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// newServer prepares a folder for a server that is not started yet.
func newServer(folder string) (*apiServer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		"sa.key":     pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
		"tokens.csv": []byte(adminToken + ",admin,1,system:masters\n"),
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			return nil, err
		}
	}
	port, err := freePort()
	return &apiServer{folder: folder, port: port}, err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// start starts the process and waits until it is ready.
func (s *apiServer) start() error {
	s.cmd = exec.Command(filepath.Join(bin, "kube-apiserver"), "--folder", s.folder, "--port", strconv.Itoa(s.port))
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	s.exited = make(chan struct{})
	if err := s.cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.exited)
	}()
	limit := time.After(2 * time.Minute)
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for !s.ready() {
		select {
		case <-retry.C:
		case <-s.exited:
			return fmt.Errorf("the API server ended; it said:\n%s", s.said.tail())
		case <-limit:
			s.stop()
			return fmt.Errorf("the API server is not ready; it said:\n%s", s.said.tail())
		}
	}
	return nil
}

// ready says whether the server answers so. The certificate exists only once it
// has started.
func (s *apiServer) ready() bool {
	client, err := rest.HTTPClientFor(s.config(adminToken))
	if err != nil {
		return false
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url()+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// stop ends the process as an upgrade does, and waits for its end.
func (s *apiServer) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.exited:
	case <-time.After(30 * time.Second):
		s.kill()
	}
}

// kill ends the process at once.
func (s *apiServer) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

func (s *apiServer) url() string { return fmt.Sprintf("https://127.0.0.1:%d", s.port) }

// ca is the file with the certificate that the server made for itself.
func (s *apiServer) ca() string { return filepath.Join(s.folder, "certs", "apiserver.crt") }

// config returns how a client reaches the server.
func (s *apiServer) config(token string) *rest.Config {
	return &rest.Config{
		Host: s.url(), BearerToken: token, QPS: 1000, Burst: 1000,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.ca()},
	}
}

// ownServer returns a started server for one test.
func ownServer(t *testing.T) *apiServer {
	t.Helper()
	s, err := newServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

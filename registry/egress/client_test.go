package egress

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestGet(t *testing.T) {
	for name, answer := range map[string]string{
		"content length":   good,
		"chunked":          chunked("load"),
		"closed at end":    "HTTP/1.0 200 OK\r\n\r\nload",
		"interim answers":  "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + good,
		"identity":         "HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 4\r\n\r\nload",
		"connection close": "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nload",
	} {
		t.Run(name, func(t *testing.T) {
			e := answering(t, answer)
			if name == "closed at end" {
				e.serve = once(answer)
			}
			c := e.client()
			for range 2 {
				a, err := get(t, c)
				if err != nil || a.Status != 200 || string(a.Body) != "load" {
					t.Fatalf("got %+v, %v", a, err)
				}
			}
		})
	}
}

// once answers one request and closes.
func once(answer string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, requests *bufio.Reader) {
		if _, err := http.ReadRequest(requests); err == nil {
			_, _ = io.WriteString(c, answer)
		}
	}
}

func TestRequestIsPlain(t *testing.T) {
	var got *http.Request
	e := &engine{t: t, serve: func(c net.Conn, requests *bufio.Reader) {
		got, _ = http.ReadRequest(requests)
		_, _ = io.WriteString(c, good)
	}}
	t.Setenv("HTTP_PROXY", "http://10.9.9.9:1")
	a, err := get(t, e.client())
	if err != nil {
		t.Fatal(err)
	}
	if got.Method != http.MethodGet || got.URL.String() != "/page?x=1" || got.Host != "10.0.0.1:30000" {
		t.Errorf("got %s %s of %s", got.Method, got.URL, got.Host)
	}
	want := http.Header{"User-Agent": {"loadplane"}, "Accept": {"*/*"}}
	for k, v := range got.Header {
		if len(v) != 1 || want.Get(k) != v[0] {
			t.Errorf("header %s: %q", k, v)
		}
	}
	if a.Peer.IsValid() {
		t.Errorf("a pipe has the address %s", a.Peer)
	}
}

func TestConnectionIsKept(t *testing.T) {
	e := answering(t, good)
	c := e.client()
	for range 10 {
		if _, err := get(t, c); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.dials.Load(); n != 1 {
		t.Errorf("%d connections for ten requests", n)
	}
}

func TestConnectionOfAnotherHostIsNotUsed(t *testing.T) {
	e := answering(t, good)
	c := e.client()
	for _, url := range []string{"http://10.0.0.1:1/", "http://10.0.0.1:1/", "http://10.0.0.2:1/"} {
		if _, err := c.Get(t.Context(), Request{URL: url, MaxBytes: 10}); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.dials.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

func TestEndedConnectionIsReplaced(t *testing.T) {
	for name, rest := range map[string]string{
		"closed":          "",
		"timed out by it": "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{t: t, serve: func(c net.Conn, requests *bufio.Reader) {
					if _, err := http.ReadRequest(requests); err != nil {
						return
					}
					_, _ = io.WriteString(c, good)
					if rest != "" {
						// The request is read, so that it can be sent whole.
						_, _ = http.ReadRequest(requests)
						_, _ = io.WriteString(c, rest)
					}
				}}
				c := e.client()
				for range 3 {
					if a, err := get(t, c); err != nil || a.Status != 200 {
						t.Fatalf("got %+v, %v", a, err)
					}
					synctest.Wait()
				}
				if n := e.dials.Load(); n != 3 {
					t.Errorf("%d connections, want 3", n)
				}
				c.Close()
				synctest.Wait()
			})
		})
	}
}

// TestConnectionIsClosedWhereAnnounced has engines that say close and only
// read on.
func TestConnectionIsClosedWhereAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{t: t, serve: func(c net.Conn, requests *bufio.Reader) {
			_, _ = http.ReadRequest(requests)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nload")
			_, _ = io.Copy(io.Discard, requests)
		}}
		c := e.client()
		for range 2 {
			if a, err := get(t, c); err != nil || a.Status != 200 {
				t.Fatalf("got %+v, %v", a, err)
			}
		}
	})
}

// TestLeftoversAreNotRead sends two answers for one request. The second must
// not pass for the answer to the next, and nothing of it reaches the log.
func TestLeftoversAreNotRead(t *testing.T) {
	var lines bytes.Buffer
	log.SetOutput(&lines)
	defer log.SetOutput(os.Stderr)
	e := answering(t, good+strings.ReplaceAll(good, "load", "fake"))
	c := e.client()
	for range 3 {
		a, err := get(t, c)
		if err != nil || string(a.Body) != "load" {
			t.Fatalf("got %+v, %v", a, err)
		}
	}
	if e.dials.Load() != 3 || lines.Len() > 0 {
		t.Errorf("%d connections, want 3; log %q", e.dials.Load(), lines.String())
	}
}

func zipped(t *testing.T, size int) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, strings.Repeat("0", size)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestHostileAnswers(t *testing.T) {
	header := func(lines string) string { return "HTTP/1.1 200 OK\r\n" + lines + "\r\n\r\n" }
	for name, c := range map[string]struct {
		answer string
		want   error
		// status is of the answer that comes with the error, 0 for none.
		status int
	}{
		"long body":             {header("Content-Length: 1048577") + long(1<<20+1), ErrTooLarge, 200},
		"declared long body":    {header("Content-Length: 999999999999"), ErrTooLarge, 200},
		"long body without end": {header("Connection: close") + long(1<<21), ErrTooLarge, 200},
		"long chunked body":     {header("Transfer-Encoding: chunked") + "200000\r\n" + long(0x200000), ErrTooLarge, 200},
		"10 MB header":          {"HTTP/1.1 200 OK\r\nX: " + long(10<<20) + "\r\n\r\n", ErrTooLarge, 0},
		"many headers":          {"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 1<<16) + "\r\n", ErrTooLarge, 0},
		"endless interims":      {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 1<<14), ErrTooLarge, 0},
		"gzip bomb":             {header("Content-Encoding: gzip\r\nConnection: close") + zipped(t, 10<<20), ErrEncoding, 200},
		"body cut off":          {header("Content-Length: 100") + "load", ErrBroken, 200},
		"chunk cut off":         {header("Transfer-Encoding: chunked") + "ff\r\nload", ErrBroken, 200},
		"bad chunk":             {header("Transfer-Encoding: chunked") + "zz\r\nload\r\n", ErrBroken, 200},
		"two lengths":           {header("Content-Length: 4\r\nContent-Length: 5") + "load", ErrBroken, 0},
		"negative length":       {header("Content-Length: -4") + "load", ErrBroken, 0},
		"no HTTP":               {"SSH-2.0-OpenSSH_9.9\r\n", ErrBroken, 0},
		"nothing":               {"", ErrBroken, 0},
		"another protocol":      {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", ErrBroken, 0},
		"unknown encoding":      {header("Transfer-Encoding: gzip") + "load", ErrBroken, 0},
		"refusal with a bomb":   {"HTTP/1.1 503 No\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n" + zipped(t, 1<<20), ErrEncoding, 503},
		"refusal without end":   {"HTTP/1.1 401 No\r\nConnection: close\r\n\r\n" + long(1<<21), ErrTooLarge, 401},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{t: t, serve: once(c.answer)}
			a, err := get(t, e.client())
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if c.status == 0 && a != nil || c.status != 0 && (a == nil || a.Status != c.status || a.Body != nil) {
				t.Errorf("got %+v, want status %d", a, c.status)
			}
		})
	}
}

// TestLimitOfALaterHeader sends a good answer first.
func TestLimitOfALaterHeader(t *testing.T) {
	answers := []string{good, "HTTP/1.1 200 OK\r\nX: " + long(10<<20) + "\r\n\r\n"}
	e := &engine{t: t, serve: func(c net.Conn, requests *bufio.Reader) {
		for _, a := range answers {
			if _, err := http.ReadRequest(requests); err != nil {
				return
			}
			_, _ = io.WriteString(c, a)
		}
	}}
	c := e.client()
	if _, err := get(t, c); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, c); !errors.Is(err, ErrTooLarge) || e.dials.Load() != 1 {
		t.Errorf("got %v over %d connections", err, e.dials.Load())
	}
}

// mapped is a connection whose far end has a mapped address.
type mapped struct{ net.Conn }

func (mapped) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP("10.0.0.7").To16(), Port: 30000}
}

func TestPeerIsUnmapped(t *testing.T) {
	e := answering(t, good)
	c := New(Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := e.dial(ctx, network, addr)
		return mapped{conn}, err
	}})
	defer c.Close()
	if a, err := get(t, c); err != nil || a.Peer != netip.MustParseAddrPort("10.0.0.7:30000") {
		t.Errorf("got %v, %v", a, err)
	}
}

func TestRedirectIsAnAnswer(t *testing.T) {
	e := answering(t, "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n")
	a, err := get(t, e.client())
	if err != nil || a.Status != 307 || e.dials.Load() != 1 {
		t.Errorf("got %+v, %v over %d connections", a, err, e.dials.Load())
	}
}

// TestSlowEngines runs into the end of the time in each part of a request.
func TestSlowEngines(t *testing.T) {
	for name, c := range map[string]struct {
		sent string
		// each is the time between two bytes.
		each time.Duration
	}{
		"never answers":      {"", 0},
		"half a header":      {"HTTP/1.1 200 OK\r\nConte", 0},
		"half a body":        {"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nlo", 0},
		"one byte a second":  {good, time.Second},
		"slow in the header": {good, 100 * time.Millisecond},
		"slow in the body":   {good, 30 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{t: t, serve: func(far net.Conn, requests *bufio.Reader) {
					if _, err := http.ReadRequest(requests); err == nil && drip(far, c.sent, c.each) {
						_, _ = io.Copy(io.Discard, requests)
					}
				}}
				client := e.client()
				began := time.Now()
				_, err := get(t, client)
				if took := time.Since(began); !errors.Is(err, ErrTimeout) || took != 2*time.Second {
					t.Errorf("got %v after %s", err, took)
				}
				<-time.After(c.each)
			})
		})
	}
}

// drip sends a text byte by byte; false says that the other end is gone.
func drip(c net.Conn, text string, each time.Duration) bool {
	for i := range len(text) {
		<-time.After(each)
		if _, err := c.Write([]byte{text[i]}); err != nil {
			return false
		}
	}
	return true
}

func TestDialEndsWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		for range 3 {
			began, before := time.Now(), runtime.NumGoroutine()
			_, err := get(t, c)
			if took := time.Since(began); !errors.Is(err, ErrConnect) || took != 2*time.Second {
				t.Errorf("got %v after %s", err, took)
			}
			synctest.Wait()
			if after := runtime.NumGoroutine(); after > before {
				t.Errorf("%d goroutines before, %d after", before, after)
			}
		}
	})
}

func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{t: t, serve: func(_ net.Conn, requests *bufio.Reader) { _, _ = io.Copy(io.Discard, requests) }}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, err := e.client().Get(ctx, Request{URL: "http://10.0.0.1:1/", MaxBytes: 1})
		if took := time.Since(began); !errors.Is(err, ErrTimeout) || !errors.Is(err, context.Canceled) || took != time.Second {
			t.Errorf("got %v after %s", err, took)
		}
		synctest.Wait()
	})
}

func TestNoConnection(t *testing.T) {
	refused := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	_, err := get(t, New(Options{Dial: refused}))
	if !errors.Is(err, ErrConnect) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	for _, url := range []string{"ftp://10.0.0.1/", "http://%zz/", "10.0.0.1:1/x", ""} {
		if _, err := New(Options{Dial: refused}).Get(t.Context(), Request{URL: url, MaxBytes: 1}); !errors.Is(err, ErrConnect) {
			t.Errorf("%q: got %v", url, err)
		}
	}
}

func TestDefaultPorts(t *testing.T) {
	for url, want := range map[string]string{
		"http://a/": "a:80", "https://a/": "a:443", "http://[::1]/": "[::1]:80", "http://[::1]:5/": "[::1]:5",
	} {
		var got string
		c := New(Options{Dial: func(_ context.Context, _, addr string) (net.Conn, error) {
			got = addr
			return nil, syscall.ECONNREFUSED
		}})
		_, _ = c.Get(t.Context(), Request{URL: url, MaxBytes: 1})
		if got != want {
			t.Errorf("%s dials %s, want %s", url, got, want)
		}
	}
}

func TestBufferIsUsed(t *testing.T) {
	buffer := make([]byte, 0, 64)
	a, err := answering(t, good).client().Get(t.Context(), Request{URL: "http://10.0.0.1:1/", MaxBytes: 4, Buffer: buffer})
	if err != nil || &a.Body[0] != &buffer[:1][0] {
		t.Errorf("got %v, another buffer", err)
	}
}

func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Authorization")+" "+r.Proto)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer srv.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	for name, c := range map[string]struct {
		ca   string
		want error
	}{
		"trusted":     {write(t, "ca.pem", string(ca)), nil},
		"self-signed": {"", ErrTLS},
		"no CA":       {write(t, "ca.pem", "nothing"), ErrCredential},
		"missing":     {"/nowhere/ca.pem", ErrCredential},
	} {
		t.Run(name, func(t *testing.T) {
			client := New(Options{CAFile: c.ca, TokenFile: write(t, "token", " secret\n")})
			defer client.Close()
			a, err := client.Get(t.Context(), Request{URL: srv.URL, MaxBytes: 100})
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if c.want == nil && (string(a.Body) != "Bearer secret HTTP/1.1" || a.Peer.Addr() != netip.MustParseAddr("127.0.0.1")) {
				t.Errorf("got %q from %s", a.Body, a.Peer)
			}
		})
	}
}

func TestPlainEngineBehindTLS(t *testing.T) {
	e := &engine{t: t, serve: func(c net.Conn, hello *bufio.Reader) {
		go func() { _, _ = io.Copy(io.Discard, hello) }()
		_, _ = io.WriteString(c, good)
	}}
	_, err := e.client().Get(t.Context(), Request{URL: "https://10.0.0.1:1/", MaxBytes: 1})
	if !errors.Is(err, ErrTLS) {
		t.Errorf("got %v", err)
	}
}

func TestCredentialsAreReadAgain(t *testing.T) {
	seen := make(chan string, 1)
	e := &engine{t: t, serve: func(c net.Conn, requests *bufio.Reader) {
		for {
			r, err := http.ReadRequest(requests)
			if err != nil {
				return
			}
			seen <- r.Header.Get("Authorization")
			_, _ = io.WriteString(c, good)
		}
	}}
	token := write(t, "token", "one")
	c := New(Options{Dial: e.dial, TokenFile: token})
	defer c.Close()
	for i, want := range []string{"one", "one", "second"} {
		if i == 2 {
			if err := os.WriteFile(token, []byte("second"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := get(t, c); err != nil {
			t.Fatal(err)
		}
		if got := <-seen; got != "Bearer "+want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for name, content := range map[string]string{"empty": " \n", "two words": "a b", "control": "a\x01"} {
		if err := os.WriteFile(token, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := get(t, c); !errors.Is(err, ErrCredential) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if len(seen) > 0 {
		t.Error("a request was sent without the token")
	}
}

func TestNewCAClosesConnections(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer srv.Close()
	ca := write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})))
	c := New(Options{CAFile: ca})
	defer c.Close()
	if _, err := c.Get(t.Context(), Request{URL: srv.URL, MaxBytes: 1}); err != nil {
		t.Fatal(err)
	}
	other := selfSigned(t)
	if err := os.WriteFile(ca, other, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), Request{URL: srv.URL, MaxBytes: 1}); !errors.Is(err, ErrTLS) {
		t.Errorf("got %v, want %v", err, ErrTLS)
	}
}

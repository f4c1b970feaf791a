package engine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

// A patched answer is one that an engine could have sent: HTTP can read it,
// and the values differ from one to the next, on every rank.
func TestPage(t *testing.T) {
	const ranks = 3
	p, err := newPage(ranks)
	if err != nil {
		t.Fatal(err)
	}
	var last []byte
	for range 3 {
		body := readPage(t, p.patched())
		if len(last) > 0 && len(body) != len(last) {
			t.Fatalf("the page changed its size from %d to %d", len(last), len(body))
		}
		for i := range ranks {
			series := fmt.Appendf(nil, "\nvllm:num_requests_running{engine=\"%d\",model_name=\"bench-model\"} %d.0\n", i, runningBase+p.next)
			if !bytes.Contains(body, series) {
				t.Errorf("answer %d lacks %q", p.next, series)
			}
		}
		last = bytes.Clone(body)
	}
}

func readPage(t *testing.T, answer []byte) []byte {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	return body
}

func TestEngineOf(t *testing.T) {
	for _, i := range []int{0, 1, 254, 255, 256, 70_000} {
		if got := engineOf(net.TCPAddrFromAddrPort(netip.AddrPortFrom(Host(i), 80))); got != i {
			t.Errorf("engine %d is taken for %d", i, got)
		}
	}
}

// The page has the size that vLLM's has, the first engine accepts and says
// nothing, the second one drips, and the third answers; its intervals are
// recorded.
func TestPages(t *testing.T) {
	p, err := OpenPages(PagesSpec{Ranks: 4, Black: 1, Drip: 1, Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- p.Serve() }()
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	p.Record()
	black, dripping, well := ask(t, p, 0), ask(t, p, 1), ask(t, p, 2)
	first := make([]byte, 1)
	if _, err := dripping.Read(first); err != nil || first[0] != 'H' {
		t.Errorf("%q, %v from the engine that drips", first, err)
	}
	// By now the first engine had as long, and the third answers.
	if err := black.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := black.Read(first); n > 0 || err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v from the engine that says nothing", n, err)
	}
	in := bufio.NewReader(well)
	for range 3 {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || int(n) != p.Size() {
			t.Fatalf("%d bytes, %v, want %d", n, err, p.Size())
		}
		write(t, well, metricsPath)
	}
	// The record does not hold the request that was sent last.
	if v := p.Intervals(); v.Count < 2 || v.Events < 3 || v.Sources != 1 || v.Most != 3 || v.Open != 3 || v.P50 == 0 {
		t.Errorf("got %+v", v)
	}
	if p.Size() < 40_000 {
		t.Errorf("a page of 4 ranks has %d bytes", p.Size())
	}
}

// ask connects to an engine and asks for its page.
func ask(t *testing.T, p *Pages, i int) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", netip.AddrPortFrom(Host(i), uint16(p.Port())).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	write(t, c, metricsPath)
	return c
}

func write(t *testing.T, c net.Conn, path string) {
	t.Helper()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
}

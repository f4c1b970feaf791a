package api_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/store"
)

// steadyPair makes two workers of two models that are fresh and not warming.
func (p *plane) steadyPair() {
	p.add(workerOf("a:1", "m"), workerOf("b:1", "n"))
	p.report("a:1", 1, 1, 1)
	p.report("b:1", 1, 1, 1)
	p.after(settle)
}

// keepFresh repeats what a worker reports until the end.
func (p *plane) keepFresh(id string, n int64) {
	p.Helper()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for sequence := uint64(100); ; sequence++ {
			select {
			case <-stop:
				return
			case <-time.After(interval):
				p.report(id, sequence, n, 1)
			}
		}
	}()
	p.Cleanup(func() {
		close(stop)
		<-stopped
	})
}

// TestTagIsOfTheContent compares tags over changes of all kinds.
func TestTagIsOfTheContent(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.steadyPair()
		tag := func(query string) string {
			a := p.get(query)
			if a.StatusCode != http.StatusOK || a.Header.Get("Cache-Control") != "no-cache" || a.Header.Get("Vary") != "Accept, Accept-Encoding" {
				p.Errorf("%s: %d %v", query, a.StatusCode, a.Header)
			}
			return a.Header.Get("ETag")
		}
		queries := []string{"", "?model=m", "?model=n", "?model=m&detail=workers", "?model=m&shape=upstream", "?worker=none", "?worker=none2"}
		first, seen := map[string]string{}, map[string]bool{}
		for _, q := range queries {
			first[q] = tag(q)
			seen[first[q]] = true
		}
		if len(seen) != len(queries) {
			p.Errorf("tags of different answers: %v", first)
		}
		if again := tag("?model=m&model=m&detail=ranks&wait=1s"); again != first["?model=m"] {
			p.Errorf("the same answer has %s and %s", again, first["?model=m"])
		}
		version := p.version()
		p.report("a:1", 2, 1, 1) // equal: a receipt only
		p.report("b:1", 2, 2, 1) // another model
		p.after(settle)
		if tag("?model=m") != first["?model=m"] || tag("?model=n") == first["?model=n"] || tag("") == first[""] || p.version() == version {
			p.Error("a change of b:1 is in the wrong tags")
		}
		p.report("b:1", 3, 1, 1) // as it was
		p.after(settle)
		if tag("?model=n") != first["?model=n"] {
			p.Error("the tag is not that of the content")
		}
	})
}

func TestNotModified(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.steadyPair()
		tag := p.get("?model=m").Header.Get("ETag")
		strong := tag[len("W/"):]
		for _, c := range []struct {
			name string
			held []string
			want int
		}{
			{"the tag", []string{tag}, 304},
			{"the tag as a strong one", []string{strong}, 304},
			{"any", []string{"*"}, 304},
			{"a list", []string{`"x, y", W/"z" ,` + tag}, 304},
			{"two headers", []string{`"x"`, tag}, 304},
			{"another", []string{`W/"1-1"`}, 200},
			{"none", nil, 200},
			{"no tag at all", []string{"x"}, 200},
			{"without its end", []string{tag[:len(tag)-1]}, 200},
			{"empty", []string{""}, 200},
		} {
			a := p.get("?model=m", c.held...)
			if a.StatusCode != c.want || a.Header.Get("ETag") != tag || a.Header.Get("Cache-Control") != "no-cache" || a.Header.Get("Date") == "" {
				p.Errorf("%s: %d %v", c.name, a.StatusCode, a.Header)
			}
			if (a.body == "") != (c.want == http.StatusNotModified) {
				p.Errorf("%s: body %q", c.name, a.body)
			}
		}
		if a := p.do(p.client(false), http.MethodHead, "/v1/load_monitor/snapshot?model=m"); a.StatusCode != http.StatusOK || a.Header.Get("ETag") != tag || a.body != "" {
			p.Errorf("HEAD: %d %v", a.StatusCode, a.Header)
		}
		if got := p.metric("loadplane_api_snapshot_requests_total", "3xx"); got != 5 {
			p.Errorf("%v answers of 304 are counted", got)
		}
	})
}

// TestLongPoll waits for what may end a wait.
func TestLongPoll(t *testing.T) {
	for _, c := range []struct {
		name, query string
		held        string // empty for the current tag
		happens     func(p *plane)
		status      int
		least, most time.Duration
	}{
		{"a change of the filter", "?model=m&wait=20s", "", func(p *plane) {
			p.after(2 * time.Second)
			p.report("a:1", 999, 7, 1)
		}, 200, 2 * time.Second, 2*time.Second + settle},
		{"a change of the filter, any tag", "?model=m&wait=20s", "*", func(p *plane) {
			p.after(2 * time.Second)
			p.report("a:1", 999, 7, 1)
		}, 200, 2 * time.Second, 2*time.Second + settle},
		{"a removal", "?model=m&wait=20s", "", func(p *plane) {
			p.after(2 * time.Second)
			p.remove("a:1")
		}, 200, 2 * time.Second, 2*time.Second + settle},
		{"changes of others", "?model=m&wait=20s", "", func(p *plane) {
			for n := range uint64(15) {
				p.after(time.Second)
				p.report("b:1", 2000+n, int64(n), 1)
			}
		}, 304, 20 * time.Second, 21250 * time.Millisecond},
		{"nothing", "?wait=20s&model=m", "", func(*plane) {}, 304, 20 * time.Second, 21250 * time.Millisecond},
		{"nothing, longer than may be", "?wait=5h&model=m", "", func(*plane) {}, 304, time.Minute, 63750 * time.Millisecond},
		{"an expiry", "?worker=b:1&wait=20s", "", func(*plane) {}, 200, staleAfter - settle, staleAfter},
		{"an answer that is old", "?model=m&wait=20s", `"old"`, func(*plane) {}, 200, 0, 0},
		{"no wait", "?model=m&wait=0s", "", func(*plane) {}, 304, 0, 0},
		{"a drain", "?model=m&wait=20s", "", func(p *plane) {
			p.after(2 * time.Second)
			p.api.Drain("the plane restarts")
		}, 503, 2 * time.Second, 2 * time.Second},
		{"a drain before", "?model=m&wait=20s", "drained", func(*plane) {}, 503, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(p *plane) {
				p.steadyPair()
				tag := p.get(c.query).Header.Get("ETag")
				switch c.held {
				case "":
				case "drained":
					p.api.Drain("")
				default:
					tag = c.held
				}
				begin := time.Now()
				p.keepFresh("a:1", 1)
				later := p.getLater(c.query, tag)
				c.happens(p)
				a := <-later
				took := time.Since(begin)
				if a.Response == nil || a.StatusCode != c.status || took < c.least || took > c.most {
					p.Fatalf("status %v after %v, want %d after %v to %v", a.Response, took, c.status, c.least, c.most)
				}
				if c.status == http.StatusServiceUnavailable && a.Header.Get("Retry-After") == "" {
					p.Error("no Retry-After")
				}
				if c.status == http.StatusOK && a.Header.Get("ETag") == tag {
					p.Error("the answer has the tag that was held")
				}
				if got := p.metric("loadplane_api_held_requests", ""); got != 0 {
					p.Errorf("%v requests are held after the end", got)
				}
			})
		})
	}
}

// TestWaitsEndSpread holds many requests that began together.
func TestWaitsEndSpread(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.steadyPair()
		tag := p.get("?model=m").Header.Get("ETag")
		p.keepFresh("a:1", 1)
		var all []<-chan answer
		for range 8 {
			all = append(all, p.getLater("?model=m&wait=16s", tag))
		}
		p.after(16 * time.Second)
		open := p.metric("loadplane_api_held_requests", "")
		if open < 4 {
			p.Errorf("%v of 8 are held at the end of the wait", open)
		}
		p.after(500 * time.Millisecond)
		if half := p.metric("loadplane_api_held_requests", ""); half == open || half == 0 {
			p.Errorf("%v of %v are held half of the spread later", half, open)
		}
		for _, later := range all {
			if a := <-later; a.StatusCode != http.StatusNotModified {
				p.Errorf("status %d", a.StatusCode)
			}
		}
	})
}

func TestLimitOfHeldRequests(t *testing.T) {
	inBubble(t, func(s *setup) { s.api.MaxHeld = 2 }, func(p *plane) {
		p.steadyPair()
		tag := p.get("?model=m").Header.Get("ETag")
		p.keepFresh("a:1", 1)
		first, second := p.getLater("?model=m&wait=5s", tag), p.getLater("?model=m&wait=5s", tag)
		synctest.Wait()
		a := p.get("?model=m&wait=5s", tag)
		if a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "1" || decode(p, a.body)["reason"] != "too_many_held" {
			p.Errorf("the third: %d %s", a.StatusCode, a.body)
		}
		if a := p.get("?model=m", tag); a.StatusCode != http.StatusNotModified {
			p.Errorf("one that does not wait: %d", a.StatusCode)
		}
		<-first
		<-second
		if a := p.get("?model=m&wait=5s", tag); a.StatusCode != http.StatusNotModified {
			p.Errorf("one after the others: %d", a.StatusCode)
		}
	})
}

// TestReaderThatGoesAwayIsNotHeld hangs up while its answer is held back.
func TestReaderThatGoesAwayIsNotHeld(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.steadyPair()
		tag := p.get("?model=m").Header.Get("ETag")
		conn, err := p.dial(p.Context())
		if err != nil {
			p.Fatal(err)
		}
		_, err = conn.Write([]byte("GET /v1/load_monitor/snapshot?model=m&wait=60s HTTP/1.1\r\nHost: plane\r\nIf-None-Match: " + tag + "\r\n\r\n"))
		if err != nil {
			p.Fatal(err)
		}
		p.after(0)
		if got := p.metric("loadplane_api_held_requests", ""); got != 1 {
			p.Fatalf("%v requests are held", got)
		}
		_ = conn.Close()
		p.after(0)
		if held, filters := p.metric("loadplane_api_held_requests", ""), p.metric("loadplane_api_filters", ""); held != 0 || filters != 0 {
			p.Errorf("%v requests are held, %v filters in use", held, filters)
		}
	})
}

// TestNotModifiedNeverHidesAnExpiry asks when a worker is past its time and
// nobody commits it.
func TestNotModifiedNeverHidesAnExpiry(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.steadyPair()
		tag := p.get("").Header.Get("ETag")
		p.stopStore()
		p.after(staleAfter - time.Second)
		if a := p.get("", tag); a.StatusCode != http.StatusNotModified {
			p.Errorf("in time: %d", a.StatusCode)
		}
		p.after(time.Second)
		if a := p.get("", tag); a.StatusCode != http.StatusOK || decode(p, a.body)["workers"].([]any)[0].(map[string]any)["freshness"] != store.Stale.String() {
			p.Errorf("past its time: %d %s", a.StatusCode, a.body)
		}
	})
}

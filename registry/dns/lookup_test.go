package dns

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rr parses a record of a zone file.
func rr(t testing.TB, text string) dns.RR {
	t.Helper()
	r, err := dns.NewRR(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// reply returns an answer with records of a zone file.
func reply(t testing.TB, q *dns.Msg, rcode int, records ...string) *dns.Msg {
	t.Helper()
	m := new(dns.Msg).SetRcode(q, rcode)
	for _, text := range records {
		m.Answer = append(m.Answer, rr(t, text))
	}
	return m
}

func TestRead(t *testing.T) {
	question := new(dns.Msg).SetQuestion("engines.example.", dns.TypeA)
	cases := []struct {
		name    string
		rcode   int
		records []string
		change  func(m *dns.Msg)
		addrs   string
		ttl     time.Duration
		reason  store.Reason
	}{
		{"two", 0, []string{"engines.example. 30 IN A 10.0.0.2", "engines.example. 20 IN A 10.0.0.1"}, nil, "[10.0.0.2 10.0.0.1]", 20 * time.Second, ""},
		{"case", 0, []string{"ENGINES.example. 30 IN A 10.0.0.2"}, nil, "[10.0.0.2]", 30 * time.Second, ""},
		{"alias", 0, []string{"engines.example. 5 IN CNAME B.example.", "b.example. 30 IN CNAME c.example.", "c.example. 60 IN A 10.0.0.3"}, nil, "[10.0.0.3]", 5 * time.Second, ""},
		{"alias in another order", 0, []string{"c.example. 60 IN A 10.0.0.3", "b.example. 30 IN CNAME c.example.", "engines.example. 50 IN CNAME b.example."}, nil, "[10.0.0.3]", 30 * time.Second, ""},
		{"alias in a circle", 0, []string{"engines.example. 5 IN CNAME b.example.", "b.example. 5 IN CNAME engines.example."}, nil, "", 0, ReasonNoRecords},
		{"records of others", 0, []string{"other.example. 5 IN A 10.0.0.9", "engines.example. 9 IN AAAA fd00::1", "engines.example. 30 IN A 10.0.0.1"}, nil, "[10.0.0.1]", 30 * time.Second, ""},
		{"another class", 0, []string{"engines.example. 5 CH A 10.0.0.9"}, nil, "", 0, ReasonNoRecords},
		{"none", 0, nil, nil, "", 0, ReasonNoRecords},
		{"no name", dns.RcodeNameError, nil, nil, "", 0, ReasonNoName},
		{"failed", dns.RcodeServerFailure, nil, nil, "", 0, ReasonServerFailed},
		{"refused", dns.RcodeRefused, []string{"engines.example. 30 IN A 10.0.0.1"}, nil, "", 0, ReasonServerFailed},
		{"cut", 0, []string{"engines.example. 30 IN A 10.0.0.1"}, func(m *dns.Msg) { m.Truncated = true }, "", 0, ReasonBadAnswer},
		{"another question", 0, []string{"engines.example. 30 IN A 10.0.0.1"}, func(m *dns.Msg) { m.Question[0].Name = "b.example." }, "", 0, ReasonBadAnswer},
		{"no question", 0, []string{"engines.example. 30 IN A 10.0.0.1"}, func(m *dns.Msg) { m.Question = nil }, "", 0, ReasonBadAnswer},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := reply(t, question, c.rcode, c.records...)
			if c.change != nil {
				c.change(m)
			}
			rrs, ttl, err := read(m, "engines.example.", dns.TypeA)
			if c.reason != "" {
				if err == nil || reasonOf(err) != c.reason || len(rrs) != 0 {
					t.Fatalf("%v, %v, want %s", rrs, err, c.reason)
				}
				return
			}
			if got := fmt.Sprint(addrsOf(rrs)); err != nil || got != c.addrs || ttl != c.ttl {
				t.Errorf("%s for %s, %v", got, ttl, err)
			}
		})
	}
}

// FuzzRead reads what a server may send.
func FuzzRead(f *testing.F) {
	question := new(dns.Msg).SetQuestion("a.", dns.TypeSRV)
	for _, records := range [][]string{nil, {"a. 1 IN SRV 0 0 80 b."}, {"a. 1 IN CNAME b.", "b. 2 IN SRV 0 0 80 c."}, {"a. 1 IN A 10.0.0.1"}} {
		b, err := reply(f, question, 0, records...).Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(dns.Msg)
		if m.Unpack(b) != nil {
			return
		}
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV} {
			rrs, ttl, err := read(m, "a.", kind)
			if (err == nil) != (len(rrs) > 0) || ttl < 0 {
				t.Fatalf("%v, %s, %v", rrs, ttl, err)
			}
			for _, r := range rrs {
				if r.Header().Rrtype != kind {
					t.Fatalf("%v is not of type %d", r, kind)
				}
			}
			addrsOf(rrs)
		}
	})
}

// zone is a server on loopback.
type zone struct {
	t       *testing.T
	addr    string
	mu      sync.Mutex
	records map[string][]string
	asked   []string
	rcode   int
	silent  bool
}

// serve starts a server over UDP and TCP. What does not fit into UDP is cut.
func serve(t *testing.T, records map[string][]string) *zone {
	t.Helper()
	return (&zone{t: t, records: records}).serve()
}

func (z *zone) serve() *zone {
	t := z.t
	t.Helper()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	z.addr = udp.LocalAddr().String()
	tcp, err := net.Listen("tcp", z.addr)
	if err != nil {
		t.Skipf("the TCP port of %s is taken: %v", z.addr, err)
	}
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	for _, s := range []*dns.Server{{PacketConn: udp, Handler: z}, {Listener: tcp, Handler: z}} {
		up := make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		running.Go(func() {
			if err := s.ActivateAndServe(); err != nil {
				t.Error(err)
			}
		})
		<-up
		t.Cleanup(func() {
			if err := s.Shutdown(); err != nil {
				t.Error(err)
			}
		})
	}
	return z
}

func (z *zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	key := strings.ToLower(q.Question[0].Name) + dns.TypeToString[q.Question[0].Qtype]
	z.asked = append(z.asked, w.LocalAddr().Network()+" "+key)
	if z.silent {
		return
	}
	m := reply(z.t, q, z.rcode, z.records[key]...)
	if w.LocalAddr().Network() == "udp" {
		m.Truncate(udpBytes)
	}
	if err := w.WriteMsg(m); err != nil {
		z.t.Log(err)
	}
}

func (z *zone) questions() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return slices.Clone(z.asked)
}

func resolverOf(timeout time.Duration, search []string, zones ...*zone) *resolver {
	r := &resolver{config: &dns.ClientConfig{Ndots: 1, Search: search}, timeout: timeout, ask: exchange}
	for _, z := range zones {
		r.servers = append(r.servers, z.addr)
	}
	return r
}

func record(t *testing.T, text string) *Record {
	t.Helper()
	r, err := ParseRecord(text)
	if err != nil {
		t.Fatal(err)
	}
	return &r
}

// TestLookups asks a real server on loopback.
func TestLookups(t *testing.T) {
	var many []string
	for i := range 600 {
		many = append(many, fmt.Sprintf("many.example. 60 IN A 10.1.%d.%d", i/250, i%250+1))
	}
	z := serve(t, map[string][]string{
		"engines.ml.example.A":   {"engines.ml.example. 30 IN A 10.0.0.1"},
		"six.example.AAAA":       {"six.example. 30 IN AAAA fd00::1"},
		"both.example.A":         {"both.example. 30 IN A 10.0.0.1"},
		"both.example.AAAA":      {"both.example. 30 IN AAAA fd00::1"},
		"many.example.A":         many,
		"_http._tcp.example.SRV": {"_http._tcp.example. 40 IN SRV 0 0 8000 both.example.", "_http._tcp.example. 40 IN SRV 9 9 8001 six.example.", "_http._tcp.example. 40 IN SRV 0 0 8002 gone.example."},
		"no.example.SRV":         {"no.example. 40 IN SRV 0 0 0 ."},
	})
	r := resolverOf(10*time.Second, []string{"svc.example", "example"}, z)
	for text, want := range map[string]string{
		"engines.ml.example.:8000": "[10.0.0.1:8000] 30s",
		"engines.ml:8000":          "[10.0.0.1:8000] 30s",
		"six.example:80":           "[[fd00::1]:80] 30s",
		"both.example:80":          "[10.0.0.1:80] 30s",
		"srv:_http._tcp.example":   "[10.0.0.1:8000 [fd00::1]:8001] 30s",
	} {
		f, err := r.lookup(t.Context(), record(t, text), "")
		if got := fmt.Sprint(f.at, " ", f.ttl); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
	if f, err := r.lookup(t.Context(), record(t, "many.example.:80"), ""); err != nil || len(f.at) != 600 ||
		!slices.Contains(z.questions(), "tcp many.example.A") {
		t.Errorf("%d of 600 addresses, %v", len(f.at), err)
	}
	if _, err := r.lookup(t.Context(), record(t, "srv:no.example."), ""); err == nil || reasonOf(err) != ReasonNoRecords {
		t.Errorf("a service that is decidedly not there: %v", err)
	}
}

// zoneText answers from records by name and type; a name without any does not
// exist, and one whose record is "fail" fails.
func zoneText(t *testing.T, records map[string][]string, asked *[]string) Exchange {
	return func(_ context.Context, _ string, _ bool, q *dns.Msg) (*dns.Msg, error) {
		name := q.Question[0].Name
		kind := dns.TypeToString[q.Question[0].Qtype]
		*asked = append(*asked, name+kind)
		list, known := records[name+kind]
		switch {
		case !known:
			return reply(t, q, dns.RcodeNameError), nil
		case slices.Equal(list, []string{"fail"}):
			return reply(t, q, dns.RcodeServerFailure), nil
		}
		return reply(t, q, 0, list...), nil
	}
}

// TestSearchList says which full names are asked for, in which order.
func TestSearchList(t *testing.T) {
	search := []string{"ns.local", "corp.example"}
	cases := []struct {
		name, record, settled string
		ndots                 int
		records               map[string][]string
		asked                 string
		found                 string
		reason                store.Reason
	}{
		{"suffix first", "engines:80", "", 1, map[string][]string{"engines.ns.local.A": {"engines.ns.local. 9 IN A 10.0.0.1"}},
			"[engines.ns.local.A]", "engines.ns.local.", ""},
		{"second suffix", "engines:80", "", 1, map[string][]string{"engines.corp.example.A": {"engines.corp.example. 9 IN A 10.0.0.1"}},
			"[engines.ns.local.A engines.corp.example.A]", "engines.corp.example.", ""},
		{"the bare name last", "engines:80", "", 1, map[string][]string{"engines.A": {"engines. 9 IN A 10.0.0.1"}},
			"[engines.ns.local.A engines.corp.example.A engines.A]", "engines.", ""},
		{"enough dots", "engines.ml:80", "", 1, map[string][]string{"engines.ml.A": {"engines.ml. 9 IN A 10.0.0.1"}, "engines.ml.ns.local.A": {"engines.ml.ns.local. 9 IN A 10.0.0.2"}},
			"[engines.ml.A]", "engines.ml.", ""},
		{"not enough dots", "engines.ml:80", "", 5, map[string][]string{"engines.ml.A": {"engines.ml. 9 IN A 10.0.0.1"}, "engines.ml.ns.local.A": {"engines.ml.ns.local. 9 IN A 10.0.0.2"}},
			"[engines.ml.ns.local.A]", "engines.ml.ns.local.", ""},
		{"a full name", "engines.ml.:80", "", 5, map[string][]string{"engines.ml.ns.local.A": {"engines.ml.ns.local. 9 IN A 10.0.0.2"}},
			"[engines.ml.A]", "", ReasonNoName},
		{"nowhere", "engines:80", "", 1, nil,
			"[engines.ns.local.A engines.corp.example.A engines.A]", "", ReasonNoName},
		{"a failure ends the search", "engines:80", "", 1, map[string][]string{"engines.ns.local.A": {"fail"}, "engines.corp.example.A": {"engines.corp.example. 9 IN A 10.0.0.1"}},
			"[engines.ns.local.A]", "", ReasonServerFailed},
		{"a failure at the second ends it too", "engines:80", "", 1, map[string][]string{"engines.corp.example.A": {"fail"}, "engines.A": {"engines. 9 IN A 10.0.0.1"}},
			"[engines.ns.local.A engines.corp.example.A]", "", ReasonServerFailed},
		{"settled", "engines:80", "engines.ns.local.", 1, map[string][]string{"engines.corp.example.A": {"engines.corp.example. 9 IN A 10.0.0.1"}},
			"[engines.ns.local.A]", "", ReasonNoName},
		{"SRV", "srv:_http._tcp.engines", "", 5, map[string][]string{
			"_http._tcp.engines.ns.local.SRV": {"_http._tcp.engines.ns.local. 9 IN SRV 0 0 80 a.example."}, "a.example.A": {"a.example. 9 IN A 10.0.0.1"},
		}, "[_http._tcp.engines.ns.local.SRV a.example.A]", "_http._tcp.engines.ns.local.", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var asked []string
			r := &resolver{
				servers: []string{"server"}, config: &dns.ClientConfig{Ndots: c.ndots, Search: search},
				timeout: time.Minute, ask: zoneText(t, c.records, &asked),
			}
			f, err := r.lookup(t.Context(), record(t, c.record), c.settled)
			if got := fmt.Sprint(asked); got != c.asked || f.name != c.found {
				t.Errorf("asked %s, found %q", got, f.name)
			}
			if c.reason == "" && (err != nil || len(f.at) != 1) || c.reason != "" && (err == nil || reasonOf(err) != c.reason) {
				t.Errorf("%v, %v, want %q", f.at, err, c.reason)
			}
		})
	}
}

// TestServices: a target that is not there, or a record that offers nothing,
// leaves the others; a target that fails leaves all as it was.
func TestServices(t *testing.T) {
	cases := []struct {
		name    string
		records map[string][]string
		want    string
		reason  store.Reason
	}{
		{"a target that does not exist", map[string][]string{
			"s.SRV": {"s. 9 IN SRV 0 0 80 gone.", "s. 9 IN SRV 0 0 81 a."}, "a.A": {"a. 9 IN A 10.0.0.1"},
		}, "[10.0.0.1:81]", ""},
		{"a target without records", map[string][]string{
			"s.SRV": {"s. 9 IN SRV 0 0 80 gone.", "s. 9 IN SRV 0 0 81 a."}, "gone.A": nil, "gone.AAAA": nil, "a.A": {"a. 9 IN A 10.0.0.1"},
		}, "[10.0.0.1:81]", ""},
		{"a target that fails", map[string][]string{
			"s.SRV": {"s. 9 IN SRV 0 0 80 bad.", "s. 9 IN SRV 0 0 81 a."}, "bad.A": {"fail"}, "a.A": {"a. 9 IN A 10.0.0.1"},
		}, "[]", ReasonServerFailed},
		{"port 0", map[string][]string{
			"s.SRV": {"s. 9 IN SRV 0 0 0 b.", "s. 9 IN SRV 0 0 81 a."}, "a.A": {"a. 9 IN A 10.0.0.1"}, "b.A": {"b. 9 IN A 10.0.0.2"},
		}, "[10.0.0.1:81]", ""},
		{"only port 0", map[string][]string{"s.SRV": {"s. 9 IN SRV 0 0 0 a."}, "a.A": {"a. 9 IN A 10.0.0.1"}}, "[]", ReasonNoRecords},
		{"only a target that is not there", map[string][]string{"s.SRV": {"s. 9 IN SRV 0 0 80 gone."}}, "[]", ReasonNoRecords},
		{"one target at two ports", map[string][]string{
			"s.SRV": {"s. 9 IN SRV 0 0 80 A.", "s. 9 IN SRV 0 0 81 a."}, "a.A": {"a. 9 IN A 10.0.0.1"},
		}, "[10.0.0.1:80 10.0.0.1:81]", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var asked []string
			r := &resolver{servers: []string{"server"}, config: &dns.ClientConfig{Ndots: 1}, timeout: time.Minute, ask: zoneText(t, c.records, &asked)}
			f, err := r.lookup(t.Context(), record(t, "srv:s."), "")
			if got := fmt.Sprint(f.at); got != c.want || c.reason == "" && err != nil || c.reason != "" && (err == nil || reasonOf(err) != c.reason) {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}

// TestBounds: an answer that leads to more than is taken is a bad answer, which
// names the bound, and ends the asking.
func TestBounds(t *testing.T) {
	addrs := func(name string, n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("%s 9 IN A 10.%d.%d.%d", name, i>>16, i>>8&255, i&255))
		}
		return list
	}
	targets := func(n int) map[string][]string {
		records := map[string][]string{}
		for i := range n {
			records["s.SRV"] = append(records["s.SRV"], fmt.Sprintf("s. 9 IN SRV 0 0 80 t%d.", i))
			records[fmt.Sprintf("t%d.A", i)] = addrs(fmt.Sprintf("t%d.", i), 1)
		}
		return records
	}
	wide := map[string][]string{}
	for i := range 100 {
		wide["s.SRV"] = append(wide["s.SRV"], fmt.Sprintf("s. 9 IN SRV 0 0 80 t%d.", i))
		wide[fmt.Sprintf("t%d.A", i)] = addrs(fmt.Sprintf("t%d.", i), 4000)
	}
	cases := []struct {
		name, record string
		records      map[string][]string
		found, asked int
		mentions     string
	}{
		{"as many addresses as may be", "a.:80", map[string][]string{"a.A": addrs("a.", maxAddresses)}, maxAddresses, 1, ""},
		{"one address more", "a.:80", map[string][]string{"a.A": addrs("a.", maxAddresses+1)}, 0, 1, "a. has more than 10000 addresses"},
		{"many targets with many addresses", "srv:s.", wide, 0, 4, "s. has more than 10000 addresses"},
		{"as many targets as may be", "srv:s.", targets(maxTargets), maxTargets, maxTargets + 1, ""},
		{"one target more", "srv:s.", targets(maxTargets + 1), 0, 1, "s. has more than 2000 targets"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var asked []string
			r := &resolver{servers: []string{"server"}, config: &dns.ClientConfig{Ndots: 1}, timeout: time.Minute, ask: zoneText(t, c.records, &asked)}
			f, err := r.lookup(t.Context(), record(t, c.record), "")
			if len(asked) != c.asked {
				t.Errorf("%d questions, want %d", len(asked), c.asked)
			}
			if c.mentions == "" {
				if err != nil || len(f.at) != c.found {
					t.Errorf("%d addresses, %v", len(f.at), err)
				}
				return
			}
			if err == nil || reasonOf(err) != ReasonBadAnswer || err.Error() != c.mentions {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestNextServer goes on to another server where one is silent or fails, and
// not where one says that there is nothing.
func TestNextServer(t *testing.T) {
	records := map[string][]string{"engines.example.A": {"engines.example. 30 IN A 10.0.0.1"}}
	good := serve(t, records)
	for name, c := range map[string]struct {
		change func(z *zone)
		reason store.Reason
	}{
		"silent":  {func(z *zone) { z.silent = true }, ""},
		"failing": {func(z *zone) { z.rcode = dns.RcodeServerFailure }, ""},
		"empty":   {func(z *zone) { z.records = nil }, ReasonNoRecords},
		"no name": {func(z *zone) { z.rcode = dns.RcodeNameError }, ReasonNoName},
	} {
		t.Run(name, func(t *testing.T) {
			bad := &zone{t: t, records: records}
			c.change(bad)
			bad.serve()
			f, err := resolverOf(500*time.Millisecond, nil, bad, good).lookup(t.Context(), record(t, "engines.example.:80"), "")
			switch {
			case c.reason == "" && (err != nil || len(f.at) != 1):
				t.Errorf("%v, %v", f, err)
			case c.reason != "" && (err == nil || reasonOf(err) != c.reason):
				t.Errorf("%v, want %s", err, c.reason)
			}
		})
	}
	lone := (&zone{t: t, silent: true}).serve()
	if _, err := resolverOf(50*time.Millisecond, nil, lone).lookup(t.Context(), record(t, "engines.example.:80"), ""); err == nil || reasonOf(err) != ReasonNoAnswer {
		t.Errorf("nobody answers: %v", err)
	}
	if _, err := resolverOf(time.Second, nil).lookup(t.Context(), record(t, "engines.example.:80"), ""); err == nil || reasonOf(err) != ReasonNoAnswer {
		t.Errorf("nobody is there: %v", err)
	}
}

// TestGarbage has a server whose bytes are no answer.
func TestGarbage(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		for b := make([]byte, 2048); ; {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			// The id and the flags of an answer, and counts that promise more.
			copy(b[2:n], "\x80\x00\xff\xff\xff\xff\xff\xff\xff\xff")
			if _, err := conn.WriteTo(b[:n], from); err != nil {
				return
			}
		}
	}()
	r := &resolver{servers: []string{conn.LocalAddr().String()}, config: &dns.ClientConfig{}, timeout: time.Second, ask: exchange}
	if _, err := r.lookup(context.Background(), record(t, "engines.example.:80"), ""); err == nil || reasonOf(err) != ReasonBadAnswer {
		t.Errorf("%v", err)
	}
}

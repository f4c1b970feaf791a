package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/miekg/dns"
	"go.yaml.in/yaml/v3"
)

// engines is the name behind which the engines are, by SRV records.
const engines = "_sglang._tcp.engines.test."

// nameServer answers for engines and for the host of their records. It is safe
// for concurrent use.
type nameServer struct {
	addr string
	stop func()

	mu    sync.Mutex
	ports []uint16
	rcode int
}

// startNameServer serves UDP on loopback until the test ends or stop is called.
func startNameServer(t *testing.T, ports ...uint16) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &nameServer{addr: conn.LocalAddr().String(), ports: ports}
	server := &dns.Server{PacketConn: conn, Handler: n}
	ready, done := make(chan struct{}), make(chan struct{})
	server.NotifyStartedFunc = func() { close(ready) }
	go func() { defer close(done); _ = server.ActivateAndServe() }()
	<-ready
	n.stop = sync.OnceFunc(func() { _ = server.Shutdown(); <-done })
	t.Cleanup(n.stop)
	return n
}

// set replaces the ports of the engines, and how questions are answered.
func (n *nameServer) set(rcode int, ports ...uint16) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rcode, n.ports = rcode, ports
}

// ServeDNS answers one question. Its records live for a second.
func (n *nameServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	n.mu.Lock()
	defer n.mu.Unlock()
	answer := new(dns.Msg).SetRcode(q, n.rcode)
	name, kind := q.Question[0].Name, q.Question[0].Qtype
	header := dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: 1}
	switch {
	case n.rcode != dns.RcodeSuccess:
	case name == engines && kind == dns.TypeSRV:
		for _, port := range n.ports {
			answer.Answer = append(answer.Answer, &dns.SRV{Hdr: header, Port: port, Target: "host.engines.test."})
		}
	case name == "host.engines.test." && kind == dns.TypeA:
		answer.Answer = append(answer.Answer, &dns.A{Hdr: header, A: net.IPv4(127, 0, 0, 1)})
	}
	_ = w.WriteMsg(answer)
}

// enginePorts returns the ports of simulated engines, by their workers file.
func enginePorts(t *testing.T, file string) (ports []uint16) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Workers []struct{ URL string } }
	if err := yaml.Unmarshal(content, &list); err != nil {
		t.Fatal(err)
	}
	for _, w := range list.Workers {
		var port uint16
		u, err := url.Parse(w.URL)
		if err == nil {
			_, err = fmt.Sscan(u.Port(), &port)
		}
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	return ports
}

// byDNS are the flags that find the engines of a name server.
func byDNS(n *nameServer, more ...string) []string {
	return append([]string{
		"--dns=srv:" + engines + ",zone=dns", "--dns-server=" + n.addr, "--dns-min-ttl=1s", "--dns-max-ttl=2s",
		"--egress-allow=127.0.0.0/8",
	}, more...)
}

// sourceList is what `workers list -o json` says of discovery.
type sourceList struct {
	Workers []struct {
		Worker       struct{ WorkerID, FreshnessReason, Zone string }
		DiscoveredBy string
	}
	Sources []struct {
		Name        string
		Synced      bool
		Workers     *int
		ListedAgeMs *string
		Error       string
	}
}

func (p *plane) sources() (list sourceList) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(command(p.t, "workers", "list", "--server=http://"+p.api, "-o", "json")), &list); err != nil {
		p.t.Fatal(err)
	}
	return list
}

// untilSources asks for the list until ok accepts it.
func (p *plane) untilSources(what string, ok func(*sourceList) bool) sourceList {
	p.t.Helper()
	limit := time.After(30 * time.Second)
	for {
		list := p.sources()
		if ok(&list) {
			return list
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-limit:
			p.t.Fatalf("waiting for %s: %+v", what, list)
		}
	}
}

// The plane finds engines by DNS; one that is added there is taken up; while the
// server fails, and when it is gone, the last list is kept and that is said.
func TestDNSDiscovery(t *testing.T) {
	_, file := fleet(t, "--engines=3", "--ranks=1")
	ports := enginePorts(t, file)
	names := startNameServer(t, ports[:2]...)
	p := serve(t, byDNS(names)...)
	p.until(20*time.Second, "two engines", func(v *view) bool { return len(v.workers) == 2 && v.fresh() == 2 })

	began := time.Now()
	names.set(dns.RcodeSuccess, ports...)
	p.until(20*time.Second, "the third engine", func(v *view) bool { return len(v.workers) == 3 && v.fresh() == 3 })
	t.Logf("an engine was fresh %v after it was in the DNS, whose records live 1 s", time.Since(began).Round(10*time.Millisecond))

	kept := func(cause string) {
		list := p.untilSources(cause, func(l *sourceList) bool { return len(l.Sources) > 0 && strings.Contains(l.Sources[0].Error, cause) })
		s := list.Sources[0]
		if s.Name != "dns" || !s.Synced || s.Workers == nil || *s.Workers != 3 || s.ListedAgeMs == nil {
			t.Errorf("%s: source %+v", cause, s)
		}
		v := p.until(20*time.Second, "all engines still", func(v *view) bool { return v.fresh() == 3 })
		if len(v.workers) != 3 {
			t.Errorf("%s: %v", cause, v.summary())
		}
		if code, body := get(t, "http://"+p.ops+"/readyz"); code != 200 || !strings.Contains(body, `{"name":"dns","synced":true,"listed_age_ms":`) || !strings.Contains(body, cause) {
			t.Errorf("%s: readyz %d %s", cause, code, body)
		}
		plain := command(t, "workers", "list", "--server=http://"+p.api)
		if !strings.Contains(plain, "error, last list kept") || !strings.Contains(plain, "\ndns: ") {
			t.Errorf("%s is not shown:\n%s", cause, plain)
		}
		for line := range strings.Lines(plain) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
				t.Errorf("%d columns: %s", n, line)
			}
		}
	}
	names.set(dns.RcodeServerFailure)
	kept("the server answers SERVFAIL")
	names.set(dns.RcodeSuccess) // And no record.
	kept("there is no record")
	names.stop()
	kept("does not answer")
	for _, count := range []string{"expected", "heard", "fresh"} {
		if n := p.metric("loadplane_api_pool_" + count + `{model="sim-model",role="plain"}`); n != 3 {
			t.Errorf("%v workers %s in the pool", n, count)
		}
	}
	if p.metric(`loadplane_dns_lookups_total{result="server_failed"}`) == 0 || p.metric(`loadplane_registry_source_failing{source="dns"}`) != 1 {
		t.Error("the failure is not counted")
	}
}

// A plane whose only source gave nothing yet is not ready, and names it.
func TestReadinessNamesTheSource(t *testing.T) {
	names := startNameServer(t)
	names.set(dns.RcodeServerFailure)
	_, file := fleet(t, "--engines=1", "--ranks=1")
	p := serve(t, byDNS(names)...)
	p.untilSources("an error", func(l *sourceList) bool {
		return len(l.Sources) > 0 && strings.Contains(l.Sources[0].Error, "no list yet: ")
	})
	if code, body := get(t, "http://"+p.ops+"/readyz"); code != 503 || !strings.Contains(body, `{"name":"dns","synced":false,"error":"no list yet: `) {
		t.Errorf("readyz %d %s", code, body)
	}
	names.set(dns.RcodeSuccess, enginePorts(t, file)...)
	p.until(20*time.Second, "the engine", func(v *view) bool { return v.fresh() == 1 && !v.last.GetWarming() })
	if code, body := get(t, "http://"+p.ops+"/readyz"); code != 200 {
		t.Errorf("readyz %d %s", code, body)
	}
}

// What the DNS says does not lead the plane to its own host, in whatever dialect.
func TestDNSDoesNotLeadToLoopback(t *testing.T) {
	_, file := fleet(t, "--engines=1", "--ranks=1")
	ports := enginePorts(t, file)
	for _, keys := range []string{"dialect=auto", "dialect=push", "dialect=poll", "dialect=loadstat", fmt.Sprintf("dialect=monitor,reporter_port=%d", ports[0])} {
		t.Run(keys, func(t *testing.T) {
			p := serve(t, "--dns=srv:"+engines+","+keys, "--dns-server="+startNameServer(t, ports...).addr)
			p.until(20*time.Second, "the refusal", func(v *view) bool {
				return len(v.workers) == 1 && v.workers[0].GetFreshnessReason() == "egress_denied"
			})
		})
	}
}

// An engine that the file and the DNS name is one worker: the file names it, and
// the DNS says what the file leaves open.
func TestOneWorkerOfTwoSources(t *testing.T) {
	_, engineFile := fleet(t, "--engines=2", "--ranks=1")
	ports := enginePorts(t, engineFile)
	file := filepath.Join(t.TempDir(), "workers.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "workers: [{url: 'http://127.0.0.1:%d', id: alpha}]\n", ports[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	p := serve(t, byDNS(startNameServer(t, ports...), "--workers-file="+file)...)
	p.until(20*time.Second, "both engines", func(v *view) bool { return len(v.workers) == 2 && v.fresh() == 2 })
	by := map[string]string{}
	for _, w := range p.sources().Workers {
		by[w.Worker.WorkerID] = w.DiscoveredBy + " " + w.Worker.Zone
	}
	if by["alpha"] != "file+dns dns" || by[fmt.Sprintf("http://127.0.0.1:%d", ports[1])] != "dns dns" {
		t.Errorf("workers %v", by)
	}
	wide := command(t, "workers", "list", "--server=http://"+p.api, "-o", "wide")
	if !strings.Contains(wide, " file+dns ") || !strings.Contains(wide, "\ndns ") || !strings.Contains(wide, "\nfile ") {
		t.Errorf("the sources are not shown:\n%s", wide)
	}
}

// order runs a command that goes to an admin socket, and returns its exit code
// and all that it wrote.
func order(t *testing.T, socket string, args ...string) (int, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, append([]string{"workers"}, args...)...)
	cmd.Env = append(os.Environ(), "LOADPLANE_ADMIN_SOCKET="+socket)
	out, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(out)
}

// An operator adds an engine, drains it, lets it work again and removes it.
func TestAdminSocket(t *testing.T) {
	_, file := fleet(t, "--engines=1", "--ranks=1")
	engine := fmt.Sprintf("127.0.0.1:%d", enginePorts(t, file)[0])
	socket := filepath.Join(t.TempDir(), "admin")
	p := serve(t, "--admin-socket="+socket)
	does := func(want string, args ...string) {
		t.Helper()
		if code, out := order(t, socket, args...); code != 0 || out != want+"\n" {
			t.Fatalf("%v: exit %d: %s", args, code, out)
		}
	}
	does("worker http://"+engine+" added, listed by admin", "add", "http://"+engine+",zone=a")
	alone := func(what string, ok func(*loadplanev1.Worker) bool) {
		p.until(20*time.Second, what, func(v *view) bool { return len(v.workers) == 1 && ok(v.workers[0]) })
	}
	alone("the engine", func(w *loadplanev1.Worker) bool {
		return w.GetFreshness() == loadplanev1.Freshness_FRESHNESS_FRESH && w.GetZone() == "a" && !w.GetDraining()
	})
	does("worker http://"+engine+" drains", "drain", engine)
	alone("draining", (*loadplanev1.Worker).GetDraining)
	does("worker http://"+engine+" takes new work again", "drain", "--undo", engine)
	alone("no draining", func(w *loadplanev1.Worker) bool { return !w.GetDraining() })
	if code, out := order(t, socket, "add", "http://"+engine); code != 1 || !strings.Contains(out, "listed by admin already; see who lists what with") {
		t.Errorf("a second time: exit %d: %s", code, out)
	}
	does("worker http://"+engine+" removed", "remove", engine)
	p.until(20*time.Second, "the removal", func(v *view) bool { return len(v.workers) == 0 })
	if code, out := order(t, socket, "remove", engine); code != 1 || !strings.Contains(out, "see the ids with: loadplane workers list") {
		t.Errorf("a second time: exit %d: %s", code, out)
	}
	p.terminate(15 * time.Second)
	if code, out := order(t, socket, "remove", engine); code != 1 || !strings.Contains(out, "there is no socket") {
		t.Errorf("after the end: exit %d: %s", code, out)
	}
}

// A plane that was killed leaves its socket, and the next one takes its place.
func TestAdminSocketOfAKilledPlane(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin")
	first := serve(t, "--admin-socket="+socket)
	second := start(t, "serve", "--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0", "--admin-socket="+socket)
	second.next(second.lines, func(l string) bool { return strings.Contains(l, "another process answers at "+socket) })
	first.kill()
	if code, out := order(t, socket, "drain", "a"); code != 1 || !strings.Contains(out, "the plane that made it is gone, start it again") {
		t.Errorf("exit %d: %s", code, out)
	}
	serve(t, "--admin-socket="+socket)
	if code, out := order(t, socket, "add", "http://127.0.0.1:1,dialect=none"); code != 0 {
		t.Errorf("exit %d: %s", code, out)
	}
}

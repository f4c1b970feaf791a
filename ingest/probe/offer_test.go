package probe

import (
	"context"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// sglangInfo is of an engine with a load reporter, whose ranks publish load.
const sglangInfo = `{"model_path":"m","dp_size":2,"load_reporter_port":31000,"kv_events":{"publisher":"zmq","endpoint_host":"*",` +
	`"endpoint_port_base":5557,"topic":"kv","block_size":64,"dp_size":2,"load_endpoint_port_base":5559,"load_topic":"load"}}`

// ports is a host on which only some ports take connections.
type ports struct {
	engine
	open  []string
	tried []string
}

func (p *ports) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	p.mu.Lock()
	p.tried = append(p.tried, addr)
	p.mu.Unlock()
	if !slices.Contains(p.open, addr) {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	return p.engine.dial(ctx, network, addr)
}

func TestMonitorOffer(t *testing.T) {
	const host = "10.0.0.1:"
	for name, c := range map[string]struct {
		info    string
		target  registry.Target
		open    []string
		verdict registry.Verdict
		reason  store.Reason
		detail  string
	}{
		"named by the engine": {
			info: sglangInfo, open: []string{"31000"}, verdict: registry.VerdictOffered, detail: "port 31000",
		},
		"named, and refuses": {
			info: sglangInfo, verdict: registry.VerdictUnknown, reason: registry.ReasonConnectFailed, detail: "port 31000: dial tcp",
		},
		"not named": {
			info: serverInfo, open: []string{"31000"}, verdict: registry.VerdictAbsent, reason: registry.ReasonUnsupported,
			detail: "GET /server_info: no load_reporter_port",
		},
		"off": {
			info: `{"model_path":"m","load_reporter_port":null}`, verdict: registry.VerdictAbsent, reason: registry.ReasonUnsupported,
			detail: "GET /server_info: no load_reporter_port",
		},
		"configured": {
			info: serverInfo, target: registry.Target{ReporterPort: 32000}, open: []string{"32000"},
			verdict: registry.VerdictOffered, detail: "port 32000",
		},
		"configured for an engine that does not tell": {
			target: registry.Target{ReporterPort: 32000}, open: []string{"32000"}, verdict: registry.VerdictOffered, detail: "port 32000",
		},
		"configured, and the engine's own answers": {
			info: sglangInfo, target: registry.Target{ReporterPort: 32000}, open: []string{"31000"},
			verdict: registry.VerdictOffered, detail: "port 31000",
		},
		"known from before, and gone": {
			info: serverInfo, target: registry.Target{ReporterPort: 31000, Facts: registry.Facts{ReporterPort: 31000}}, open: []string{"31000"},
			verdict: registry.VerdictAbsent, reason: registry.ReasonUnsupported, detail: "GET /server_info: no load_reporter_port",
		},
		"known from before, and moved": {
			info: sglangInfo, target: registry.Target{ReporterPort: 30999, Facts: registry.Facts{ReporterPort: 30999}}, open: []string{"31000", "30999"},
			verdict: registry.VerdictOffered, detail: "port 31000",
		},
		"known from before, and no answer now": {
			info: "status 503", target: registry.Target{ReporterPort: 31000, Facts: registry.Facts{ReporterPort: 31000}}, open: []string{"31000"},
			verdict: registry.VerdictOffered, detail: "port 31000",
		},
		"no page": {
			verdict: registry.VerdictAbsent, reason: registry.ReasonUnsupported, detail: "GET /server_info: 404",
		},
		"a credential is wanted": {
			info: "status 401", verdict: registry.VerdictAbsent, reason: registry.ReasonAuth, detail: "GET /server_info: 401",
		},
		"no answer now": {
			info: "status 503", verdict: registry.VerdictUnknown, reason: registry.ReasonEngineError, detail: "GET /server_info: 503",
		},
		"a page of nobody": {
			info: "<html>", verdict: registry.VerdictUnknown, reason: registry.ReasonBadAnswer, detail: "GET /server_info: 200",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &ports{engine: engine{bodies: map[string]string{"/server_info": c.info}}, open: []string{host + "30000"}}
			for _, port := range c.open {
				p.open = append(p.open, host+port)
			}
			c.target.URL = testURL
			f := newProber(t, p.dial).Probe(t.Context(), c.target)
			o := offer(f, store.DialectMonitor)
			if o.Verdict != c.verdict || o.Reason != c.reason || !strings.HasPrefix(o.Detail, c.detail) {
				t.Errorf("got %+v after %q", o, p.tried)
			}
		})
	}
}

// TestNoReporterIsDialledUnasked: an engine that names none costs no connection
// but that of the questions.
func TestNoReporterIsDialledUnasked(t *testing.T) {
	p := &ports{engine: engine{bodies: kinds["vllm"].bodies}, open: []string{"10.0.0.1:30000"}}
	newProber(t, p.dial).Probe(t.Context(), registry.Target{URL: testURL})
	if slices.ContainsFunc(p.tried, func(addr string) bool { return addr != "10.0.0.1:30000" }) {
		t.Errorf("dialled %q", p.tried)
	}
}

func TestLoadstatOffer(t *testing.T) {
	for name, c := range map[string]struct {
		info   string
		family string
		want   registry.Offer
	}{
		"published":       {sglangInfo, "", registry.Offer{Verdict: registry.VerdictOffered, Detail: "ports 5559 to 5560"}},
		"no topic named":  {strings.Replace(sglangInfo, `,"load_topic":"load"`, "", 1), "", registry.Offer{Verdict: registry.VerdictOffered, Detail: "ports 5559 to 5560"}},
		"off":             {serverInfo, "", registry.Offer{Verdict: registry.VerdictAbsent, Reason: registry.ReasonUnsupported, Detail: "GET /server_info: no load_endpoint_port_base"}},
		"of another kind": {sglangInfo, "vllm", registry.Offer{Verdict: registry.VerdictAbsent, Reason: registry.ReasonUnsupported, Detail: "not of vllm"}},
		"not there yet":   {"status 503", "", registry.Offer{Reason: registry.ReasonEngineError, Detail: "GET /server_info: 503"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{bodies: map[string]string{"/server_info": c.info}}
			f := newProber(t, e.dial).Probe(t.Context(), registry.Target{
				URL: testURL, Using: store.DialectPoll, Facts: registry.Facts{Family: c.family},
			})
			c.want.Dialect = store.DialectLoadstat
			if o := offer(f, store.DialectLoadstat); o != c.want {
				t.Errorf("got %+v, want %+v", o, c.want)
			}
		})
	}
}

func TestSockets(t *testing.T) {
	for want, l := range map[string]registry.LoadStat{
		"port 5559": {Port: 5559, Ranks: 1}, "ports 5559 to 5562": {Port: 5559, Ranks: 4},
		"port 5559 of 10.0.0.2": {Port: 5559, Ranks: 1, Host: "10.0.0.2"},
	} {
		if got := Sockets(l); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestFactsComeBesideADialectInUse: what says which dialects are offered is
// told as facts too.
func TestFactsComeBesideADialectInUse(t *testing.T) {
	e := &engine{bodies: map[string]string{"/server_info": sglangInfo}}
	f := newProber(t, e.dial).Probe(t.Context(), registry.Target{URL: testURL, Using: store.DialectPoll})
	if f.Facts.ReporterPort != 31000 || f.Facts.LoadStat.Port != 5559 || f.Facts.LoadStat.Ranks != 2 || !f.Complete {
		t.Errorf("got %+v", f)
	}
}

// TestInspectOfAReporter shows the port that would be dialled and the page that
// is read meanwhile.
func TestInspectOfAReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &ports{
			engine: engine{bodies: map[string]string{"/server_info": sglangInfo, "/v1/loads": sglangLoads}},
			open:   []string{"10.0.0.1:30000", "10.0.0.1:31000"},
		}
		r := newProber(t, p.dial).Inspect(t.Context(), registry.Target{URL: testURL})
		if r.Dialect != store.DialectMonitor || r.ReporterPort != 31000 || r.Why != "monitor: offered (port 31000)" || r.Reading == nil {
			t.Errorf("got %+v", r)
		}
		synctest.Wait()
	})
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/cadence"
	"github.com/loadplane/loadplane/e2e/bench/child"
	"github.com/loadplane/loadplane/e2e/bench/program"
	"github.com/loadplane/loadplane/e2e/bench/report"
	"github.com/loadplane/loadplane/sim"
)

// reporterFor is how many times the duration of a measurement one of the load
// reporter takes: the system counts its CPU in steps of 10 ms.
const reporterFor = 4

// The dialects that a load reporter speaks.
const (
	dialectNative = "native"
	dialectPush   = "push"
)

// beside says beside what a load reporter runs and how it reports. It is a plain
// value.
type beside struct {
	kind     sim.Kind
	ranks    int
	dialect  string
	interval time.Duration
}

func (s beside) String() string {
	return fmt.Sprintf("%s, %d ranks, %s, one in %s", s.kind, s.ranks, s.dialect, s.interval)
}

const sampledEach = 100 * time.Millisecond

// reported are the cases of part reporter, in turn. Three ranks of a vLLM are a
// page of about 100 KB. One report in 10 ms keeps the cores of a machine without
// other work from sleeping, so it shows what a report costs without their waking.
var reported = []beside{
	{sim.KindSGLangPoll, 8, dialectNative, sampledEach},
	{sim.KindSGLangPoll, 8, dialectPush, sampledEach},
	{sim.KindVLLM, 3, dialectNative, sampledEach},
	{sim.KindSGLangPoll, 8, dialectNative, 10 * time.Millisecond},
}

// reporter measures what the load reporter uses beside one engine.
func (b *bench) reporter() error {
	for run := range b.runs {
		for _, s := range reported {
			v, err := b.reporterOnce(s)
			if err == nil {
				err = b.results.Add(report.Record{Part: "reporter", Case: s.String(), Of: report.Loadreporter, Run: run, Values: v})
			}
			if err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
	}
	return nil
}

func (b *bench) reporterOnce(s beside) (report.Values, error) {
	post, err := b.post(s)
	if err != nil {
		return nil, err
	}
	defer post.stop()
	if err := b.warmUp(); err != nil {
		return nil, err
	}
	if err := post.receiver.Do("record", s.interval, nil); err != nil {
		return nil, err
	}
	used, err := b.uses(post.program, reporterFor*b.duration)
	if err != nil {
		return nil, err
	}
	seen, err := post.seen()
	if err != nil {
		return nil, err
	}
	page, err := b.pageBytes(post.url)
	if err != nil {
		return nil, err
	}
	reports := float64(seen.Reports.Events)
	v := used.values()
	v[report.ReportRate] = reports / used.seconds
	v[report.ReportCPU] = used.cpu * used.seconds * 1e6 / reports
	v["unhealthy reports"] = float64(seen.Unhealthy)
	v["bytes of /metrics"] = float64(page)
	return v, nil
}

// used is what a process used in a measurement. It is a plain value.
type used struct {
	seconds, cpu float64
	after        program.Usage
}

// uses measures a process for a time.
func (b *bench) uses(p *program.Program, d time.Duration) (used, error) {
	before, err := p.Usage()
	if err != nil {
		return used{}, err
	}
	if err := b.pause(d); err != nil {
		return used{}, err
	}
	after, err := p.Usage()
	if err != nil {
		return used{}, fmt.Errorf("%w: %s", err, p.Log())
	}
	seconds := after.At.Sub(before.At).Seconds()
	return used{seconds: seconds, cpu: (after.CPU - before.CPU).Seconds() / seconds, after: after}, nil
}

func (u used) values() report.Values {
	const mib = 1 << 20
	return report.Values{
		report.CorePercent: 100 * u.cpu,
		report.ResidentMiB: float64(u.after.Resident) / mib,
		report.PeakMiB:     float64(u.after.Peak) / mib,
	}
}

// post is a load reporter beside a simulated engine, and the receiver of its
// reports. It is for one goroutine.
type post struct {
	family
	beside
	engine, receiver *child.Process
	program          *program.Program
	url, address     string
}

// post starts them and waits for reports. stop ends them, also after an error.
func (b *bench) post(s beside) (*post, error) {
	p := &post{family: family{bench: b}, beside: s}
	for _, step := range []func() error{p.launch, p.report, p.hear} {
		if err := step(); err != nil {
			p.stop()
			return nil, err
		}
	}
	return p, nil
}

func (p *post) launch() (err error) {
	if p.engine, err = p.start("sim", loadCore); err != nil {
		return err
	}
	if err := p.engine.Do("open", simulated{p.kind, p.ranks}, &p.url); err != nil {
		return err
	}
	if p.receiver, err = p.start("receiver", loadCore); err != nil {
		return err
	}
	return p.receiver.Do("open", child.Nothing{}, &p.address)
}

// report starts the load reporter.
func (p *post) report() error {
	b := p.bench
	path, err := b.command("loadreporter")
	if err != nil {
		return err
	}
	state, err := os.MkdirTemp(b.dir, "reporter-")
	if err != nil {
		return err
	}
	args := []string{"--engine", p.url, "--listen", "127.0.0.1:0", "--state-dir", state}
	if p.dialect == dialectNative {
		args = append(args, "--plane", "http://"+p.address, "--interval", p.interval.String())
	}
	p.program, err = program.Start(b.ctx, b.core(serverCore), path, args...)
	if err != nil || p.dialect == dialectNative {
		return err
	}
	return p.ask()
}

// ask has the load reporter push, as a router does.
func (p *post) ask() error {
	ctx, cancel := context.WithTimeout(p.bench.ctx, setUpWithin)
	defer cancel()
	face, err := p.program.Address(ctx, "http")
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(p.address)
	if err != nil {
		return err
	}
	const lease = time.Hour
	body := fmt.Appendf(nil, `{"ip":%q,"port":%s,"report_interval_ms":%d,"lease_ttl_ms":%d}`,
		host, port, p.interval.Milliseconds(), lease.Milliseconds())
	for {
		answer, status, err := fetch(ctx, http.MethodPost, "http://"+face+"/v1/start_reporting", body)
		if err != nil {
			return err
		}
		if status == http.StatusOK {
			return nil
		}
		// Before the first sample it is not known whether all fields are there.
		if err := p.bench.pause(100 * time.Millisecond); err != nil || ctx.Err() != nil {
			return fmt.Errorf("start_reporting was answered with %d: %s", status, answer)
		}
	}
}

// hear waits until reports are as they will be.
func (p *post) hear() error { return p.receiver.Do("await", expected{Reports: 3, Ranks: p.ranks}, nil) }

// seen returns what the receiver recorded, which has to be one reporter's.
func (p *post) seen() (seen cadence.Seen, err error) {
	if err := p.receiver.Do("seen", child.Nothing{}, &seen); err != nil {
		return seen, err
	}
	if seen.Reports.Sources != 1 || seen.Reports.Count == 0 {
		return seen, fmt.Errorf("%d reports from %d sources: %s", seen.Reports.Events, seen.Reports.Sources, p.program.Log())
	}
	return seen, nil
}

// stop ends the load reporter before what it is beside.
func (p *post) stop() {
	if p.program != nil {
		if err := p.program.Stop(); err != nil && p.bench.ctx.Err() == nil {
			fmt.Fprintf(p.bench.log, "bench: loadreporter ended with %v: %s\n", err, p.program.Log())
		}
	}
	p.family.stop()
}

// command returns the path of a command of the product, which it builds once.
func (b *bench) command(name string) (string, error) {
	path := filepath.Join(b.dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return program.Build(b.ctx, b.dir, name)
}

// core returns where a process belongs, where the machine pins.
func (b *bench) core(n int) int {
	if !b.machine.Pinned {
		return child.Unpinned
	}
	return n
}

// pageBytes is the size of the metrics page of an engine.
func (b *bench) pageBytes(url string) (int, error) {
	ctx, cancel := context.WithTimeout(b.ctx, setUpWithin)
	defer cancel()
	body, status, err := fetch(ctx, http.MethodGet, url+"/metrics", nil)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("/metrics was answered with %d", status)
	}
	return len(body), err
}

// fetch makes a request on a connection of its own.
func fetch(ctx context.Context, method, url string, body []byte) ([]byte, int, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return text, resp.StatusCode, err
}

// listed is the number of workers that a plane lists.
func listed(ctx context.Context, api string) (int, error) {
	body, _, err := fetch(ctx, http.MethodGet, "http://"+api+"/v1/load_monitor/snapshot", nil)
	if err != nil {
		return 0, err
	}
	var page struct{ Workers []struct{} }
	err = json.Unmarshal(body, &page)
	return len(page.Workers), err
}

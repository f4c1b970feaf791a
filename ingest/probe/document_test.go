package probe

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

func TestServerInfo(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want registry.Facts
	}{
		"prefill":           {`{"served_model_name":"m","disaggregation_mode":"prefill"}`, registry.Facts{Models: []string{"m"}, Role: store.RolePrefill}},
		"decode":            {`{"served_model_name":"m","disaggregation_mode":"decode"}`, registry.Facts{Models: []string{"m"}, Role: store.RoleDecode}},
		"null":              {`{"served_model_name":"m","disaggregation_mode":null}`, registry.Facts{Models: []string{"m"}, Role: store.RoleRegular}},
		"unknown mode":      {`{"served_model_name":"m","disaggregation_mode":"encode"}`, registry.Facts{Models: []string{"m"}}},
		"no mode":           {`{"served_model_name":"m"}`, registry.Facts{Models: []string{"m"}}},
		"path":              {`{"served_model_name":null,"model_path":"/models/m/"}`, registry.Facts{Models: []string{"/models/m"}}},
		"bug 35: no name":   {`{"served_model_name":"undefined","model_path":""}`, registry.Facts{}},
		"odd types":         {`{"served_model_name":{"a":1},"model_path":"m","dp_size":"two","version":7}`, registry.Facts{Models: []string{"m"}}},
		"sizes":             {`{"model_path":"m","dp_size":-1}`, registry.Facts{Models: []string{"m"}}},
		"huge sizes":        {`{"model_path":"m","dp_size":1e9}`, registry.Facts{Models: []string{"m"}}},
		"one rank":          {`{"model_path":"m","dp_size":1,"max_total_num_tokens":500}`, registry.Facts{Models: []string{"m"}, DPSize: 1, CapacityTokens: 500}},
		"of all ranks":      {`{"model_path":"m","dp_size":2,"max_total_num_tokens":500,"max_running_requests":9}`, registry.Facts{Models: []string{"m"}, DPSize: 2}},
		"ranks differ":      {`{"model_path":"m","internal_states":[{"effective_max_running_requests_per_dp":5},{"effective_max_running_requests_per_dp":6}]}`, registry.Facts{Models: []string{"m"}}},
		"capacities differ": {`{"model_path":"m","internal_states":[{"memory_usage":{"token_capacity":5}},{"memory_usage":{"token_capacity":6}}]}`, registry.Facts{Models: []string{"m"}}},
		"a terminal":        {`{"model_path":"m","version":"1\u001b[31m"}`, registry.Facts{Models: []string{"m"}}},
		"long name":         {`{"model_path":"` + strings.Repeat("m", 257) + `"}`, registry.Facts{}},
		"a name of two":     {`{"served_model_name":["b","a","a"]}`, registry.Facts{Models: []string{"a", "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.Family = "sglang"
			if got, ok := parseServerInfo([]byte(c.body)); !ok || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v, want %+v", got, ok, c.want)
			}
		})
	}
}

// TestReporterPort reads the port of a load reporter, and nothing that is none.
func TestReporterPort(t *testing.T) {
	for value, want := range map[string]int{
		`31000`: 31000, `1`: 1, `65535`: 65535,
		`null`: 0, `0`: 0, `-1`: 0, `65536`: 0, `"31000"`: 0, `31000.0`: 0, `31000.5`: 0, `true`: 0, `[31000]`: 0, `{}`: 0, `1e99`: 0,
	} {
		f, ok := parseServerInfo([]byte(`{"model_path":"m","load_reporter_port":` + value + `}`))
		if !ok || f.ReporterPort != want {
			t.Errorf("%s: got %d, %v, want %d", value, f.ReporterPort, ok, want)
		}
	}
}

// TestLoadStat reads where load is published.
func TestLoadStat(t *testing.T) {
	on := func(more string) string {
		return `"kv_events":{"publisher":"zmq","endpoint_port_base":5557,"topic":"kv","load_topic":"load","load_endpoint_port_base":5565` + more + `}`
	}
	one := registry.LoadStat{Port: 5565, Topic: "load", Ranks: 1}
	at := func(host string, ranks int) registry.LoadStat {
		return registry.LoadStat{Host: host, Port: 5565, Topic: "load", Ranks: ranks}
	}
	for name, c := range map[string]struct {
		body string
		want registry.LoadStat
	}{
		"on":                        {on(""), one},
		"any address":               {on(`,"endpoint_host":"*"`), one},
		"any IPv4 address":          {on(`,"endpoint_host":"0.0.0.0"`), one},
		"any IPv6 address":          {on(`,"endpoint_host":"::"`), one},
		"in brackets":               {on(`,"endpoint_host":"[::]"`), one},
		"no address":                {on(`,"endpoint_host":""`), one},
		"null address":              {on(`,"endpoint_host":null`), one},
		"another host":              {on(`,"endpoint_host":"10.0.0.7"`), at("10.0.0.7", 1)},
		"ranks of its own":          {on(`,"dp_size":4`) + `,"dp_size":2`, at("", 4)},
		"ranks of the engine":       {on("") + `,"dp_size":2`, at("", 2)},
		"ranks null":                {on(`,"dp_size":null`) + `,"dp_size":null`, one},
		"off":                       {`"kv_events":{"publisher":"zmq","endpoint_port_base":5557,"topic":"kv","dp_size":2}`, registry.LoadStat{}},
		"no events":                 {`"kv_events":null`, registry.LoadStat{}},
		"missing":                   {`"dp_size":2`, registry.LoadStat{}},
		"a list":                    {`"kv_events":[1]`, registry.LoadStat{}},
		"a text":                    {`"kv_events":"{}"`, registry.LoadStat{}},
		"port of another type":      {`"kv_events":{"load_topic":"load","load_endpoint_port_base":"5565"}`, registry.LoadStat{}},
		"port 0":                    {`"kv_events":{"load_topic":"load","load_endpoint_port_base":0}`, registry.LoadStat{}},
		"port null":                 {`"kv_events":{"load_topic":"load","load_endpoint_port_base":null}`, registry.LoadStat{}},
		"no topic":                  {`"kv_events":{"load_endpoint_port_base":5565}`, registry.LoadStat{Port: 5565, Ranks: 1}},
		"topic null":                {`"kv_events":{"load_endpoint_port_base":5565,"load_topic":null}`, registry.LoadStat{Port: 5565, Ranks: 1}},
		"topic without port":        {`"kv_events":{"load_topic":"load"}`, registry.LoadStat{}},
		"empty topic":               {`"kv_events":{"load_endpoint_port_base":5565,"load_topic":""}`, registry.LoadStat{}},
		"topic of another type":     {`"kv_events":{"load_endpoint_port_base":5565,"load_topic":7}`, registry.LoadStat{}},
		"long topic":                {`"kv_events":{"load_endpoint_port_base":5565,"load_topic":"` + strings.Repeat("t", maxTopicBytes+1) + `"}`, registry.LoadStat{}},
		"host of another type":      {on(`,"endpoint_host":7`), registry.LoadStat{}},
		"host that is a terminal's": {on(`,"endpoint_host":"a\u001b[2J"`), registry.LoadStat{}},
		"no ranks":                  {on(`,"dp_size":0`) + `,"dp_size":2`, registry.LoadStat{}},
		"too many ranks":            {on(`,"dp_size":4097`), registry.LoadStat{}},
		"ranks of another type":     {on("") + `,"dp_size":"two"`, registry.LoadStat{}},
		"ports above the last":      {`"kv_events":{"load_topic":"load","load_endpoint_port_base":65535,"dp_size":2}`, registry.LoadStat{}},
	} {
		t.Run(name, func(t *testing.T) {
			if f, ok := parseServerInfo([]byte(`{"model_path":"m",` + c.body + `}`)); !ok || f.LoadStat != c.want {
				t.Errorf("got %+v, %v, want %+v", f.LoadStat, ok, c.want)
			}
		})
	}
}

func TestOtherDocuments(t *testing.T) {
	for _, body := range []string{"", "{", "[]", "null", "7", `"x"`, "{}", `{"data":null}`, `{"vllm_config":"x"}`, "<html>"} {
		for i, parse := range parsers {
			if f, ok := parse([]byte(body)); ok {
				t.Errorf("parser %d takes %q for %+v", i, body, f)
			}
		}
	}
	if f, ok := parseModels([]byte(`{"data":[]}`)); !ok || !reflect.DeepEqual(f, registry.Facts{}) {
		t.Errorf("an empty list: %+v, %v", f, ok)
	}
	if f, _ := parseProps([]byte(`{"total_slots":2,"model_alias":"a","model_path":"/p"}`)); !slices.Equal(f.Models, []string{"a"}) {
		t.Errorf("an alias: %+v", f)
	}
	many := `{"data":[` + strings.Repeat(`{"id":"m"},`, 1000) + `{"id":"last"}]}`
	if f, _ := parseModels([]byte(many)); !slices.Equal(f.Models, []string{"m"}) {
		t.Errorf("many models: %q", f.Models)
	}
}

// TestModelsAreBounded lists more models than are kept.
func TestModelsAreBounded(t *testing.T) {
	var names, items []string
	for i := range maxModels + 9 {
		names = append(names, fmt.Sprintf(`"m%03d"`, i))
		items = append(items, fmt.Sprintf(`{"id":"m%03d"}`, i))
	}
	listed, _ := parseModels([]byte(`{"data":[` + strings.Join(items, ",") + `]}`))
	served, _ := parseServerInfo([]byte(`{"served_model_name":[` + strings.Join(names, ",") + `]}`))
	if len(listed.Models) != maxModels || len(served.Models) != maxModels {
		t.Errorf("%d and %d models, want %d", len(listed.Models), len(served.Models), maxModels)
	}
}

// TestOutsideServerInfo reads documents as engines sent them.
func TestOutsideServerInfo(t *testing.T) {
	dir := os.Getenv("LOADPLANE_EXTRA_INPUTS")
	if dir == "" {
		t.Skip("LOADPLANE_EXTRA_INPUTS names no folder with inputs")
	}
	file, err := os.Open(filepath.Join(dir, "sglang_server_info_worker_variants.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var roles []store.Role
	for lines := bufio.NewScanner(file); lines.Scan(); {
		f, ok := parseServerInfo(lines.Bytes())
		if !ok || !slices.Equal(f.Models, []string{"m"}) {
			t.Errorf("%s: got %+v, %v", lines.Text(), f, ok)
		}
		roles = append(roles, f.Role)
	}
	if want := []store.Role{store.RolePrefill, store.RolePrefill, store.RoleDecode}; !slices.Equal(roles, want) {
		t.Errorf("roles %v, want %v", roles, want)
	}
}

var parsers = []func([]byte) (registry.Facts, bool){parseServerInfo, parseModels, parseVersion, parseInfo, parseProps}

func FuzzDocuments(f *testing.F) {
	for _, seed := range []string{serverInfo, vllmModels, tgiInfo, llamaProps, llamaModels, sglangInfo, `{"version":"1"}`, `{"data":[{"id":["a"]}]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, parse := range parsers {
			facts, ok := parse(body)
			if !ok && !reflect.DeepEqual(facts, registry.Facts{}) {
				t.Fatalf("refused, and facts %+v", facts)
			}
			wellFormed(t, facts)
		}
	})
}

// FuzzServerInfo reads SGLang's page alone, in the keys that say where to dial.
func FuzzServerInfo(f *testing.F) {
	f.Add(`31000`, `{"load_endpoint_port_base":5565,"load_topic":"load","endpoint_host":"*","dp_size":2}`, `2`)
	f.Add(`null`, `{"load_endpoint_port_base":65535,"load_topic":"load"}`, `null`)
	f.Fuzz(func(t *testing.T, port, events, size string) {
		body := `{"model_path":"m","load_reporter_port":` + port + `,"kv_events":` + events + `,"dp_size":` + size + `}`
		facts, _ := parseServerInfo([]byte(body))
		wellFormed(t, facts)
	})
}

// wellFormed checks the bounds of facts.
func wellFormed(t *testing.T, f registry.Facts) {
	l := f.LoadStat
	if f.ReporterPort < 0 || f.ReporterPort > maxPort || (l.Port == 0) != (l == registry.LoadStat{}) {
		t.Fatalf("port %d, %+v", f.ReporterPort, l)
	}
	if l.Port != 0 && (l.Port < 1 || l.Ranks < 1 || l.Port+l.Ranks-1 > maxPort || l.Topic == "" || len(l.Topic) > maxTopicBytes || len(l.Host) > maxHostBytes) {
		t.Fatalf("sockets %+v", l)
	}
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	if !slices.IsSorted(f.Models) || len(slices.Compact(slices.Clone(f.Models))) != len(f.Models) || len(f.Models) > maxModels {
		t.Fatalf("models %q", f.Models)
	}
	for _, text := range append([]string{f.Version, l.Host, l.Topic}, f.Models...) {
		if len(text) > ingest.MaxModelBytes || strings.ContainsFunc(text, odd) || text != strings.TrimSpace(text) {
			t.Fatalf("text %q", text)
		}
	}
	if slices.Contains(f.Models, "") || slices.Contains(f.Models, "undefined") {
		t.Fatalf("models %q", f.Models)
	}
	if f.DPSize < 0 || f.DPSize > ingest.HardMaxRanks || f.CapacityTokens < 0 || f.CapacityTokens > ingest.MaxCount || f.MaxRunning < 0 || f.MaxRunning > maxRunning {
		t.Fatalf("numbers %+v", f)
	}
}
